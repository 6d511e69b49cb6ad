#include "cli/bench/store/store_script.h"

#include <chrono>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/bench/suite/child_output.h"

namespace stagelink::cli::bench {

std::string store_python(const SuiteContext& context) {
  const std::string& chosen = context.options().python;
  return chosen.empty() ? context.beside_sources(".venv/bin/python", "python3") : chosen;
}

nlohmann::json numbers_of(const SuiteContext& context, std::string_view cases, const char* name,
                          const std::string& python) {
  constexpr auto kTimeout = std::chrono::seconds(180);
  const auto script = context.script(name);
  if (!script) {
    SuiteContext::leave_out(cases, fmt::format("bench/{} not found", name));
    return nullptr;
  }
  auto output = run_child({python, *script}, kTimeout);
  if (!output.ok()) {
    SuiteContext::leave_out(cases, output.status().message());
    return nullptr;
  }
  const size_t at = output->rfind('{');  // The host may have logged before it.
  auto printed = nlohmann::json::parse(output->substr(at == std::string::npos ? 0 : at), nullptr,
                                       /*allow_exceptions=*/false);
  if (printed.is_object()) return printed;
  SuiteContext::leave_out(cases, "the script printed no object");
  return nullptr;
}

}  // namespace stagelink::cli::bench
