#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stagelink/result.h"

namespace stagelink::config {

struct ConfigNode;
struct ConfigEntry;

// One value of a configuration file, with its place. Scalars keep the text they were written as:
// the option table gives them their type.
struct ConfigNode {
  enum class Kind : uint8_t { kScalar, kList, kMap };
  Kind kind = Kind::kScalar;
  size_t line = 0;  // From 1.
  size_t column = 0;
  uint32_t file = 0;    // Of several that are read together; whoever reads them counts.
  std::string text;     // Of a scalar.
  bool quoted = false;  // `"5"` rather than `5`.
  bool typed = false;   // From JSON: unquoted is a number, true, false or null, and never a text.
  std::vector<ConfigNode> items;     // Of a list.
  std::vector<ConfigEntry> entries;  // Of a map, in order; keys are unique.

  bool is_null() const noexcept;                                  // Plain and empty, `~` or `null`.
  const ConfigEntry* find(std::string_view name) const noexcept;  // Of a map; null: not there.
};

struct ConfigEntry {
  ConfigNode key;  // A scalar.
  ConfigNode value;
};

enum class ConfigSyntax : uint8_t { kYaml, kJson };

// Bounds of a file.
inline constexpr size_t kMaxConfigBytes = 1 << 20;
inline constexpr size_t kMaxConfigNodes = 4096;
inline constexpr size_t kMaxConfigDepth = 16;

// Reads one document; `name` stands before line and column in messages. An empty document is an
// empty map. Tags, anchors, aliases, duplicate keys, keys that are no scalars and a second document
// are refused. Errors: invalid_argument, limit (too_large).
Result<ConfigNode> parse_config(std::string_view text, ConfigSyntax syntax, std::string_view name);

// Reads a file; JSON if its name ends in .json, else YAML. Errors: those of parse_config,
// not_found, permission.
Result<ConfigNode> read_config_file(const std::string& path);

}  // namespace stagelink::config
