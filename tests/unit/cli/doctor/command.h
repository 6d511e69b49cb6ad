#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "stagelink/engine_options.h"
#include "unit/cli/doctor/tree.h"

namespace stagelink::cli::doctor {

using Json = nlohmann::json;

// What one run of the command gave.
struct DoctorOutcome {
  int exit_code = -1;
  std::string out;
  std::string err;

  Json finding(std::string_view cause) const {
    const Json report = Json::parse(out, nullptr, false);
    for (const Json& finding : report.value("findings", Json::array())) {
      if (finding["cause"] == cause) return finding;
    }
    ADD_FAILURE() << "no finding `" << cause << "` in " << out << err;
    return {{"what", ""}, {"level", ""}, {"do", ""}};
  }
};

// Runs it in this process.
inline DoctorOutcome doctor(std::vector<std::string> arguments) {
  CLI::App app("test", "stagelink");
  DoctorOutcome outcome;
  add_doctor_command(app, outcome.exit_code);
  arguments.insert(arguments.begin(), "doctor");
  std::reverse(arguments.begin(), arguments.end());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    outcome.exit_code = app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  std::fflush(stdout);
  outcome.out = testing::internal::GetCapturedStdout();
  outcome.err = testing::internal::GetCapturedStderr();
  return outcome;
}

inline EngineOptions engine_options(const Tree& tree, std::string name) {
  EngineOptions options;
  options.name = std::move(name);
  options.runtime_dir = tree.path("run");
  return options;
}

}  // namespace stagelink::cli::doctor
