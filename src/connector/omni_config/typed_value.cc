#include "connector/omni_config/typed_value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace stagelink::omni {
namespace {

using config::ConfigEntry;
using config::ConfigNode;
using Json = nlohmann::json;

// What is added to `extra` by resolution, and what each end may set for itself.
constexpr std::array<std::string_view, 12> kAddedKeys = {
    "role",        "stage_id",        "from_stage", "to_stage",    "zmq_port",     "rpc_port",
    "sender_host", "sender_zmq_port", "outgoing",   "window_size", "max_inflight", "type"};

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> words) noexcept {
  return std::find(words.begin(), words.end(), text) != words.end();
}

bool only_of(std::string_view text, std::string_view characters) noexcept {
  return !text.empty() && text.find_first_not_of(characters) == std::string_view::npos;
}

std::string without_underscores(std::string_view text) {
  std::string out(text);
  std::erase(out, '_');
  return out;
}

bool parse_whole(const std::string& digits, int base, int64_t& out) noexcept {
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, out, base);
  return error == std::errc() && stop == end;
}

// An integer of YAML 1.1, but for the base 60.
bool yaml_integer(std::string_view text, int64_t& out) {
  const bool negative = text.starts_with('-');
  std::string_view body = text;
  if (negative || text.starts_with('+')) body.remove_prefix(1);
  int base = 10;
  std::string_view digits = "0123456789_";
  if (body.starts_with("0x")) {
    base = 16;
    digits = "0123456789abcdefABCDEF_";
    body.remove_prefix(2);
  } else if (body.starts_with("0b")) {
    base = 2;
    digits = "01_";
    body.remove_prefix(2);
  } else if (body.size() > 1 && body.front() == '0') {
    base = 8;
    digits = "01234567_";
    body.remove_prefix(1);
  } else if (body.starts_with('_')) {
    return false;
  }
  if (!only_of(body, digits)) return false;
  return parse_whole((negative ? "-" : "") + without_underscores(body), base, out);
}

bool parse_real(const std::string& text, double& out) noexcept {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, out);
  return error == std::errc() && stop == end && std::isfinite(out);
}

// A number of YAML 1.1 with a point: "1.5", ".5", "1.e+3"; an exponent needs its sign.
bool yaml_real(std::string_view text, double& out) {
  std::string_view body = text;
  if (body.starts_with('-') || body.starts_with('+')) body.remove_prefix(1);
  const size_t point = body.find('.');
  if (point == std::string_view::npos || body == ".") return false;
  const size_t exponent = body.find_first_of("eE");
  const std::string_view mantissa = body.substr(0, exponent);
  if (exponent != std::string_view::npos) {
    const std::string_view tail = body.substr(exponent + 1);
    if (!tail.starts_with('-') && !tail.starts_with('+')) return false;
    if (!only_of(tail.substr(1), "0123456789")) return false;
  }
  if (point > mantissa.size() || mantissa.starts_with('_')) return false;
  if (!only_of(mantissa, "0123456789_.") || mantissa.find('.', point + 1) != mantissa.npos) {
    return false;
  }
  return parse_real(without_underscores(text.starts_with('+') ? text.substr(1) : text), out);
}

TypedValue plain_value(const ConfigNode& scalar) {
  const std::string& text = scalar.text;
  if (scalar.typed) {
    if (text == "null") return nullptr;
    if (text == "true" || text == "false") return text == "true";
  } else {
    if (is_one_of(text, {"", "~", "null", "Null", "NULL"})) return nullptr;
    if (is_one_of(text, {"yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"}))
      return true;
    if (is_one_of(text, {"no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"})) {
      return false;
    }
  }
  int64_t whole = 0;
  double real = 0;
  if (scalar.typed) {
    if (parse_whole(text, 10, whole)) return whole;
    if (parse_real(text, real)) return real;
    return text;
  }
  if (yaml_integer(text, whole)) return whole;
  if (yaml_real(text, real)) return real;
  return text;
}

Json json_of(const ConfigNode& node) {
  if (node.kind == ConfigNode::Kind::kScalar) {
    return std::visit([](const auto& value) { return Json(value); }, typed_value(node));
  }
  if (node.kind == ConfigNode::Kind::kList) {
    Json list = Json::array();
    for (const ConfigNode& item : node.items) list.push_back(json_of(item));
    return list;
  }
  Json map = Json::object();
  for (const ConfigEntry& entry : node.entries) map[entry.key.text] = json_of(entry.value);
  return map;
}

// Bytes that are no UTF-8 cannot stand in a configuration that was read; in one that was built they
// are replaced.
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

TypedValue typed_value(const ConfigNode& scalar) {
  if (scalar.quoted) return scalar.text;
  return plain_value(scalar);
}

std::string to_json(const ConfigNode& node) { return dump(json_of(node)); }

std::string first_difference(const ConfigNode& left, const ConfigNode& right) {
  const auto is_map = [](const ConfigNode& node) { return node.kind == ConfigNode::Kind::kMap; };
  for (const ConfigEntry& entry : left.entries) {
    const ConfigEntry* other = right.find(entry.key.text);
    if (other == nullptr) return entry.key.text;
    if (is_map(entry.value) && is_map(other->value)) {
      const std::string inner = first_difference(entry.value, other->value);
      if (!inner.empty()) return entry.key.text + "." + inner;
    } else if (json_of(entry.value) != json_of(other->value)) {
      return entry.key.text;
    }
  }
  for (const ConfigEntry& entry : right.entries) {
    if (left.find(entry.key.text) == nullptr) return entry.key.text;
  }
  return {};
}

ConfigNode text_node(std::string_view text) {
  ConfigNode node;
  node.text = text;
  node.quoted = true;
  return node;
}

ConfigNode integer_node(int64_t value) {
  ConfigNode node;
  node.text = std::to_string(value);
  return node;
}

void set_key(ConfigNode& map, std::string_view key, ConfigNode value) {
  if (const ConfigEntry* entry = map.find(key)) {
    const_cast<ConfigEntry*>(entry)->value = std::move(value);
    return;
  }
  map.entries.push_back({text_node(key), std::move(value)});
}

std::string default_namespace(const ConfigNode& extra) {
  Json json = json_of(extra);
  if (!json.is_object()) json = Json::object();
  for (const std::string_view key : kAddedKeys) json.erase(std::string(key));
  const std::string text = dump(json);
  return fmt::format("omni-{:016x}", XXH3_64bits(text.data(), text.size()));
}

}  // namespace stagelink::omni
