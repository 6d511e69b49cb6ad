#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "stagelink/engine_options.h"
#include "unit/cli/doctor/tree.h"
#include "unit/cli/run_command.h"

namespace stagelink::cli::doctor {

using Json = nlohmann::json;

struct DoctorOutcome : CommandOutcome {
  Json finding(std::string_view cause) const {
    const Json report = Json::parse(out, nullptr, false);
    for (const Json& finding : report.value("findings", Json::array())) {
      if (finding["cause"] == cause) return finding;
    }
    ADD_FAILURE() << "no finding `" << cause << "` in " << out << err;
    return {{"what", ""}, {"level", ""}, {"do", ""}};
  }
};

inline DoctorOutcome doctor(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "doctor");
  return {run_command(std::move(arguments))};
}

inline EngineOptions engine_options(const Tree& tree, std::string name) {
  EngineOptions options;
  options.name = std::move(name);
  options.runtime_dir = tree.path("run");
  return options;
}

}  // namespace stagelink::cli::doctor
