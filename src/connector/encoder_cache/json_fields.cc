#include "connector/encoder_cache/json_fields.h"

#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "connector/encoder_cache/registry/http/request_target.h"

namespace stagelink::encoder_cache::fields {

using nlohmann::json;

namespace {

constexpr int kDeepest = 6;

// Brackets within brackets, as far as the text goes: what is deeper than any message is not parsed.
bool too_deep(std::string_view body) noexcept {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kDeepest) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace

Status bad_message(std::string_view field, std::string_view wanted) {
  return Status(Reason::kFrame, fmt::format("{}: {} is expected", field, wanted));
}

Result<json> parse_object(std::string_view body) {
  if (too_deep(body)) return bad_message("body", "a JSON object of few levels");
  json parsed = json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return bad_message("body", "a JSON object");
  return parsed;
}

const json* find(const json& object, const char* field) {
  const auto at = object.find(field);
  return at == object.end() ? nullptr : &*at;
}

Result<std::string> text_of(const json& object, const char* field) {
  const json* const value = find(object, field);
  if (value == nullptr || !value->is_string()) return bad_message(field, "a text");
  return value->get_ref<const std::string&>();
}

Result<uint64_t> unsigned_value(const json& value, const char* field) {
  if (!value.is_number_unsigned()) return bad_message(field, "an integer of at least 0");
  return value.get<uint64_t>();
}

Result<uint64_t> unsigned_of(const json& object, const char* field) {
  const json* const value = find(object, field);
  if (value == nullptr) return bad_message(field, "an integer of at least 0");
  return unsigned_value(*value, field);
}

Result<Duration> duration_of(const json& object, const char* field) {
  const json* const value = find(object, field);
  if (value == nullptr || value->is_null()) return Duration::zero();
  if (!value->is_number()) return bad_message(field, "a number of seconds");
  auto seconds = seconds_of(value->get<double>(), field);
  if (!seconds.ok()) return Status(Reason::kFrame, std::string(seconds.status().message()));
  return seconds;
}

Result<InstanceId> id_of(const json& object, const char* field) {
  SL_ASSIGN(const std::string text, text_of(object, field));
  auto id = parse_instance(text);
  if (!id.ok()) return bad_message(field, "32 lower-case hex digits");
  return id;
}

Result<const json*> array_of(const json& object, const char* field, size_t least, size_t most) {
  const json* const value = find(object, field);
  if (value == nullptr || !value->is_array() || value->size() < least || value->size() > most) {
    return bad_message(field, fmt::format("an array of {} to {}", least, most));
  }
  return value;
}

Result<EmbeddingInfo> info_of(const json& object) {
  EmbeddingInfo info;
  SL_ASSIGN(info.nbytes, unsigned_of(object, "nbytes"));
  SL_ASSIGN(info.dtype, text_of(object, "dtype"));
  SL_ASSIGN(const json* const shape, array_of(object, "shape", 0, kMaxShapeDims));
  for (const json& dim : *shape) {
    SL_ASSIGN(const uint64_t size, unsigned_value(dim, "shape"));
    info.shape.push_back(size);
  }
  return info;
}

Result<Reason> reason_of(const std::string& name) {
  for (int i = 1; i < kReasonCount; ++i) {
    const auto reason = static_cast<Reason>(i);
    if (reason_name(reason) == name) return reason;
  }
  return bad_message("reason", "a reason that this version knows");
}

void append_text(std::string& out, std::string_view text) {
  const bool plain = is_plain_text(text);
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || (byte >= 0x80 && !plain)) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", byte < 0x80 ? byte : 0x80);
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  out += '"';
}

}  // namespace stagelink::encoder_cache::fields
