#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "config/config_node.h"
#include "stagelink/result.h"

namespace stagelink::omni {

// The value of a scalar as vLLM-Omni's own reader (YAML 1.1) has it: `yes` is true, `0x10` is 16,
// `1_000` is 1000, `010` is 8. Numbers that do not fit, `.inf`, `.nan` and `1:30` stay texts.
using TypedValue = std::variant<std::nullptr_t, bool, int64_t, double, std::string>;
TypedValue typed_value(const config::ConfigNode& scalar);

// As compact JSON: of a map with sorted keys, so that equal values give equal texts.
std::string to_json(const config::ConfigNode& node);

// The first place where two values differ: "port"; empty if they do not. A list is one value.
std::string first_difference(const config::ConfigNode& left, const config::ConfigNode& right);

// Builds nodes for what is added to an `extra`.
config::ConfigNode text_node(std::string_view text);
config::ConfigNode integer_node(int64_t value);
// Sets, or adds, one key of a map.
void set_key(config::ConfigNode& map, std::string_view key, config::ConfigNode value);

// Which store an edge uses where `extra` names none: "omni-" and a digest of `extra` without what
// is added for each stage or rank (roles, stage ids, ports, bounds), so that both ends agree and
// pipelines of different configuration never meet.
std::string default_namespace(const config::ConfigNode& extra);

}  // namespace stagelink::omni
