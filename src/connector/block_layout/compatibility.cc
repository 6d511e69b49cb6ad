#include "connector/block_layout/compatibility.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/text.h"

namespace stagelink::block_layout {
namespace {

constexpr std::string_view kTpSize = "tp_size";
constexpr std::array<std::string_view, 6> kMayDiffer = {
    "num_blocks", "host", "engine_id", "vllm_version", "stagelink_version", "dp_size"};
constexpr size_t kShownBytes = 120;

bool tp_sizes_fit(const std::string& ours, const std::string& theirs) {
  const auto a = parse_integer(ours);
  const auto b = parse_integer(theirs);
  if (!a.ok() || !b.ok() || *a < 1 || *b < 1) return false;
  return *a % *b == 0 || *b % *a == 0;
}

// FNV-1a with 64 bits: the same everywhere, and no secret hangs on it.
void mix(uint64_t& hash, std::string_view text) noexcept {
  for (const char c : text) {
    hash ^= static_cast<uint8_t>(c);
    hash *= 0x100000001b3;
  }
  hash ^= 0xff;  // No byte of UTF-8: ends the text.
  hash *= 0x100000001b3;
}

}  // namespace

bool may_differ(std::string_view field) noexcept {
  return std::find(kMayDiffer.begin(), kMayDiffer.end(), field) != kMayDiffer.end();
}

std::vector<std::string> differences(const Description& ours, const Description& theirs) {
  std::vector<std::string> out;
  for (const auto& [field, value] : ours) {
    const auto other = theirs.find(field);
    if (other == theirs.end() || other->second == value || may_differ(field)) continue;
    if (field == kTpSize && tp_sizes_fit(value, other->second)) continue;
    out.push_back(fmt::format("{}: ours {}, theirs {}", field, to_plain_text(value, kShownBytes),
                              to_plain_text(other->second, kShownBytes)));
  }
  return out;
}

Status check_compatible(const Description& ours, const Description& theirs) {
  const auto lines = differences(ours, theirs);
  if (lines.empty()) return {};
  return Status(Reason::kIncompatible, fmt::format("{}", fmt::join(lines, "; ")));
}

std::string compat_hash(const Description& description) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const auto& [field, value] : description) {
    if (field == kTpSize || may_differ(field)) continue;
    mix(hash, field);
    mix(hash, value);
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace stagelink::block_layout
