#include <cstdio>

#include <fmt/format.h>

#include "cli/store/store_commands.h"
#include "config/store_config.h"

namespace stagelink::cli {
namespace {

constexpr const char* kStoreExamples =
    "Examples:\n"
    "  stagelink store stat                       the arena `default` of this user\n"
    "  stagelink store ls --name pipeline-a       its objects, the oldest first\n"
    "  stagelink store get req-1:0_1 -o req.bin   the bytes of one, without taking it away\n"
    "  stagelink store rm req-1:0_1               erase it\n"
    "  stagelink store clear --remove             erase all; the arena goes with its last user\n"
    "  stagelink store bench --json               what a put and a get cost here\n"
    "  stagelink store up --backend yuanrong      servers of the other backend, to try it out\n"
    "Exit codes: 0 done, 1 no such store or object or it failed, 2 wrong usage.\n";

int hex_digit(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::shared_ptr<StoreArguments> add_store_arguments(CLI::App& command) {
  auto arguments = std::make_shared<StoreArguments>();
  command.add_option("--name", arguments->name, "The arena's name; short for --option name=NAME");
  command.add_option("--config", arguments->config,
                     "A file with a section `store`; default: STAGELINK_CONFIG");
  command.add_option("--option", arguments->options, "name=value, repeated")->take_all();
  return arguments;
}

Result<StoreOptions> store_options_of(const StoreArguments& arguments, bool only_existing) {
  std::vector<std::string> options = arguments.options;
  if (!arguments.name.empty()) options.push_back("name=" + arguments.name);
  SL_ASSIGN(StoreOptions loaded, config::load_store_options({arguments.config, true, options}));
  if (only_existing) loaded.arena.capacity = 0;
  return loaded;
}

int store_failure(const Status& status) {
  fmt::print(stderr, "error: {}\n", status.to_string());
  return status.code() == Code::kInvalidArgument ? kExitUsage : kExitFailed;
}

Result<std::string> store_key(const std::string& text, bool hex) {
  if (!hex) return text;
  std::string key;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    const int high = hex_digit(text[i]);
    const int low = hex_digit(text[i + 1]);
    if (high < 0 || low < 0) break;
    key += static_cast<char>(high * 16 + low);
  }
  if (key.empty() || key.size() * 2 != text.size()) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("`{}` is not an even number of hex digits", text.substr(0, 80)));
  }
  return key;
}

std::string to_hex(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

void add_store_command(CLI::App& app, int& exit_code) {
  CLI::App* const command =
      app.add_subcommand("store", "Look into an object store, clear it, measure it");
  command->require_subcommand(1);
  command->footer(kStoreExamples);
  for (const AddCommand add : kStoreCommands) add(*command, exit_code);
}

}  // namespace stagelink::cli
