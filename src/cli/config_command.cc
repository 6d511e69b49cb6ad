#include <cstdio>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/config_check/pipeline_check.h"
#include "config/engine_config.h"

namespace stagelink::cli {
namespace {

struct ConfigArguments {
  std::string file;
  std::string platform;
  bool json = false;
  std::vector<std::string> options;
};

constexpr const char* kExamples =
    "Examples:\n"
    "  stagelink config check engine.yaml            say what is wrong with a file\n"
    "  stagelink config check pipeline.yaml          the edges of a pipeline of vLLM-Omni, "
    "resolved\n"
    "  stagelink config check pipeline.yaml --json   the same for scripts\n"
    "  stagelink config show                         what is in force: file, environment, "
    "defaults\n"
    "  stagelink config show --config engine.yaml --option copy_threads=2\n"
    "  stagelink config docs > docs/options.md       the reference of all options\n"
    "Exit codes: 0 fine, 2 the configuration is wrong.\n";

int print_options(const config::ConfigSources& sources, const char* heading) {
  auto options = config::load_engine_options(sources);
  if (!options.ok()) {
    std::fprintf(stderr, "error: %s\n", options.status().to_string().c_str());
    return kExitUsage;
  }
  std::printf("%s%s", heading, config::to_text(*options).c_str());
  return kExitOk;
}

// A file of an engine, or of a pipeline.
int check_file(const ConfigArguments& arguments) {
  const auto root = config::read_config_file(arguments.file);
  if (root.ok() && is_pipeline(*root)) {
    return check_pipeline({arguments.file, arguments.platform, arguments.json});
  }
  return print_options({arguments.file, false, {}}, "# The file is right. It gives:\n");
}

}  // namespace

void add_config_command(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("config", "Check and show the options of engines and pipelines");
  command->require_subcommand(1);
  command->footer(kExamples);
  const auto arguments = std::make_shared<ConfigArguments>();

  CLI::App* check = command->add_subcommand("check", "Check a file and print what it gives");
  check->add_option("file", arguments->file, "YAML, or JSON if it ends in .json")->required();
  check->add_option("--platform", arguments->platform,
                    "Apply the overrides of this platform of a pipeline");
  check->add_flag("--json", arguments->json, "Of a pipeline: for scripts");
  check->callback([arguments, &exit_code] { exit_code = check_file(*arguments); });

  CLI::App* show = command->add_subcommand("show", "Print the options in force");
  show->add_option("--config", arguments->file, "A file; default: STAGELINK_CONFIG");
  show->add_option("--option", arguments->options, "name=value, repeated")->take_all();
  show->callback([arguments, &exit_code] {
    exit_code = print_options({arguments->file, true, arguments->options}, "");
  });

  CLI::App* docs = command->add_subcommand("docs", "Print the reference of all options (Markdown)");
  docs->callback([&exit_code] {
    std::fputs(config::engine_options_page().c_str(), stdout);
    exit_code = kExitOk;
  });
}

}  // namespace stagelink::cli
