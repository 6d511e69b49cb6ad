#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "cli/bench/suite/suite_context.h"

namespace stagelink::cli::bench {

// The Python that scripts of the suite `store` run with.
std::string store_python(const SuiteContext& context);

// The numbers that a script of bench/ has printed as one JSON object; null: why not was said.
nlohmann::json numbers_of(const SuiteContext& context, std::string_view cases, const char* name,
                          const std::string& python);

}  // namespace stagelink::cli::bench
