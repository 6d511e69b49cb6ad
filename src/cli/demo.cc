#include <iostream>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/replay/run.h"

namespace stagelink::cli {

void add_demo_command(CLI::App& app, int& exit_code) {
  CLI::App* const command = app.add_subcommand(
      "demo", "Move the KV cache of a small built-in workload between two processes");
  const auto output = std::make_shared<replay::RunOutput>();
  output->plot = "stagelink-demo.svg";
  command->add_option("--plot", output->plot, "Where the picture goes")
      ->capture_default_str()
      ->type_name("FILE.svg");
  command->add_flag("--json", output->json, "Print one JSON object instead of words");
  command->callback([output, &exit_code] {
    if (!output->json) {
      std::cout << "A prefill process fills the KV blocks of 96 chat requests, a decode process\n"
                   "pulls those that it does not hold and compares every byte.\n\n"
                << std::flush;
    }
    exit_code = replay::run(replay::ReplayOptions{}, *output);
    if (exit_code == kExitOk && !output->json) {
      std::cout << "\nThe picture is in " << output->plot << ". Next: stagelink replay --help\n";
    }
  });
}

}  // namespace stagelink::cli
