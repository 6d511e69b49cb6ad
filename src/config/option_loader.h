#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/config_node.h"
#include "config/option_table.h"
#include "stagelink/result.h"

namespace stagelink::config {

// Where options come from; a later source wins over an earlier one: the default, the file, the
// environment, the arguments.
struct ConfigSources {
  std::string file;                    // Empty: $STAGELINK_CONFIG; if that is empty too, no file.
  bool environment = true;             // STAGELINK_<NAME>; an empty variable counts as unset.
  std::vector<std::string> arguments;  // "name=value", as given to --option.
};

// Fills `options`, the struct that `table` is for, which holds the defaults. On failure it may be
// half filled. Errors name the place (path:line:column, variable, argument), the option, the value
// and what is expected: unknown_key, invalid_argument, not_found, permission, limit (too_large).
Status load_options(const OptionTable& table, const ConfigSources& sources, void* options);

// As a part of load_options: the section of the table in a file that has been read as `root`.
Status apply_config(const OptionTable& table, const ConfigNode& root, std::string_view path,
                    void* options);

// One option by name, deprecated names included.
Status set_named(const OptionTable& table, void* options, std::string_view name,
                 const OptionValue& value);

// YAML that load_options reads back to the same values. Secrets are left out.
std::string options_text(const OptionTable& table, const void* options);
// The reference page, in Markdown. `defaults` is a default-constructed struct.
std::string options_page(const OptionTable& table, const void* defaults);
// Its tables alone, one for each group.
std::string options_tables(const OptionTable& table, const void* defaults);

}  // namespace stagelink::config
