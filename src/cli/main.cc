#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "stagelink/version.h"

namespace stagelink::cli {
namespace {

int run(int argc, char** argv) {
  CLI::App app("Moves the data of disaggregated LLM serving between processes.", "stagelink");
  app.set_version_flag("--version", std::string("stagelink ") + kVersion);
  app.require_subcommand(1);
  app.failure_message([](const CLI::App* root, const CLI::Error& error) {
    // What is not known may be why something else is missing, so it is named first.
    const std::vector<std::string> unknown = root->remaining(/*recurse=*/true);
    const std::string what = unknown.empty() ? error.what() : "not known here: " + unknown.front();
    return "error: " + what + "\nRun with --help for the options.\n";
  });

  int exit_code = kExitOk;
  for (const AddCommand add : kCommands) add(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  return exit_code;
}

// An answer that could not be written, such as to a full disk, is no success.
int check_output(int exit_code) {
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written && std::cout.flush().good()) return exit_code;
  std::fprintf(stderr, "error: writing to standard output: %s\n", std::strerror(errno));
  return exit_code == kExitOk ? kExitFailed : exit_code;
}

}  // namespace
}  // namespace stagelink::cli

int main(int argc, char** argv) {
  try {
    return stagelink::cli::check_output(stagelink::cli::run(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return stagelink::cli::kExitFailed;
  }
}
