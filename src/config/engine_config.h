#pragma once

#include <string>
#include <string_view>

#include "config/option_loader.h"
#include "config/option_table.h"
#include "stagelink/engine_options.h"
#include "stagelink/result.h"

namespace stagelink::config {

// The options of an engine: section `engine` in files, STAGELINK_<NAME> in the environment.
const OptionTable& engine_option_table() noexcept;

Result<EngineOptions> load_engine_options(const ConfigSources& sources);

// For command lines and keyword arguments; errors as load_options.
Status set_option(EngineOptions& options, std::string_view name, std::string_view text);
Status set_option_value(EngineOptions& options, std::string_view name, const OptionValue& value);

// For options that were filled in by code. Errors: invalid_argument names option, value and range.
Status check_engine_options(const EngineOptions& options);

// What `stagelink config show` prints; load_engine_options reads it back to the same options.
std::string to_text(const EngineOptions& options);
// docs/options.md, with the options of a store behind those of an engine.
std::string engine_options_page();

}  // namespace stagelink::config
