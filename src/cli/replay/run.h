#pragma once

#include <string>

#include "cli/replay/run_plan.h"

namespace stagelink::cli::replay {

struct RunOutput {
  bool json = false;  // Instead of the table, on stdout.
  std::string plot;   // An SVG file; empty: none.
};

std::string model_names();

// Plans, runs and reports. Returns the process's exit code; what went wrong has been printed.
int run(const ReplayOptions& options, const RunOutput& output);

}  // namespace stagelink::cli::replay
