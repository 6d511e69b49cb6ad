#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cli/commands.h"

namespace stagelink::cli {

// What one run of a command gave.
struct CommandOutcome {
  int exit_code = -1;
  std::string out;
  std::string err;
};

// Runs it in this process; the first argument is the command's name.
inline CommandOutcome run_command(std::vector<std::string> arguments) {
  CLI::App app("test", "stagelink");
  CommandOutcome outcome;
  for (const AddCommand add : kCommands) add(app, outcome.exit_code);
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

}  // namespace stagelink::cli
