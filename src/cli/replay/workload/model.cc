#include "cli/replay/workload/model.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>

#include <fmt/format.h>

namespace stagelink::cli::replay {
namespace {

// From the models' published configurations. The models with multi-head latent attention keep one
// latent of kv_lora_rank (512) elements and the rope part of the key (64) for each token and layer.
constexpr std::array kModels = {
    ModelGeometry{"llama-3.1-8b", 32, 2, 8, 128, "bf16"},
    ModelGeometry{"llama-3.1-70b", 80, 2, 8, 128, "bf16"},
    ModelGeometry{"llama-3.2-1b", 16, 2, 8, 64, "bf16"},
    ModelGeometry{"qwen2.5-7b", 28, 2, 4, 128, "bf16"},
    ModelGeometry{"qwen3-8b", 36, 2, 8, 128, "bf16"},
    ModelGeometry{"mistral-7b", 32, 2, 8, 128, "bf16"},
    ModelGeometry{"gemma-2-9b", 42, 2, 8, 256, "bf16"},
    ModelGeometry{"deepseek-v2-lite", 27, 1, 1, 512 + 64, "bf16"},
    ModelGeometry{"deepseek-v3", 61, 1, 1, 512 + 64, "bf16"},
};

struct Dtype {
  std::string_view name;
  uint32_t bytes;
};
constexpr std::array kDtypes = {Dtype{"bf16", 2}, Dtype{"fp16", 2}, Dtype{"fp32", 4},
                                Dtype{"fp8", 1}, Dtype{"int8", 1}};

template <typename Items>
std::string names_of(const Items& items) {
  std::string names;
  for (const auto& item : items) {
    if (!names.empty()) names += ", ";
    names += item.name;
  }
  return names;
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return {};
  return value;
}

std::optional<double> parse_share(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return parse_number(text);
  const auto numerator = parse_number(text.substr(0, slash));
  const auto denominator = parse_number(text.substr(slash + 1));
  if (!numerator || !denominator || *denominator == 0) return {};
  return *numerator / *denominator;
}

}  // namespace

std::span<const ModelGeometry> known_models() { return kModels; }

Result<ModelGeometry> find_model(std::string_view name) {
  const auto found = std::ranges::find(kModels, name, &ModelGeometry::name);
  if (found != kModels.end()) return *found;
  return Status(Reason::kNotFound,
                fmt::format("no model \"{}\"; known: {}", name, names_of(kModels)));
}

Result<uint32_t> dtype_bytes(std::string_view dtype) {
  const auto found = std::ranges::find(kDtypes, dtype, &Dtype::name);
  if (found != kDtypes.end()) return found->bytes;
  return Status(Reason::kInvalidArgument,
                fmt::format("no element type \"{}\"; known: {}", dtype, names_of(kDtypes)));
}

Result<uint32_t> scaled_layers(uint32_t layers, const std::string& scale) {
  const auto share = parse_share(scale);
  if (!share || *share <= 0 || *share > 1) {
    return Status(
        Reason::kInvalidArgument,
        fmt::format("--scale: {} is not a share of the layers such as 1/32, 0.5 or 1", scale));
  }
  const auto kept = static_cast<uint32_t>(std::lround(*share * layers));
  return std::clamp<uint32_t>(kept, 1, layers);
}

}  // namespace stagelink::cli::replay
