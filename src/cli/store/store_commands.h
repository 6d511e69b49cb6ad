#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "stagelink/result.h"
#include "stagelink/store_options.h"

namespace stagelink::cli {

// The commands below `stagelink store`. Declare one here and name it in the list.
void add_store_stat(CLI::App& store, int& exit_code);
void add_store_ls(CLI::App& store, int& exit_code);
void add_store_get(CLI::App& store, int& exit_code);
void add_store_rm(CLI::App& store, int& exit_code);
void add_store_clear(CLI::App& store, int& exit_code);
void add_store_bench(CLI::App& store, int& exit_code);
void add_store_up(CLI::App& store, int& exit_code);
void add_store_down(CLI::App& store, int& exit_code);
inline constexpr std::initializer_list<AddCommand> kStoreCommands = {
    add_store_stat,  add_store_ls,    add_store_get, add_store_rm,
    add_store_clear, add_store_bench, add_store_up,  add_store_down,
};

// Which store a command means.
struct StoreArguments {
  std::string config;
  std::vector<std::string> options;  // "name=value"
  std::string name;                  // Short for the option `name`.
  bool json = false;
};
std::shared_ptr<StoreArguments> add_store_arguments(CLI::App& command);

// The options in force. `only_existing`: no arena is made for who looks into it.
Result<StoreOptions> store_options_of(const StoreArguments& arguments, bool only_existing);

// Says what has failed; gives the exit code.
int store_failure(const Status& status);

// A key of the command line: as it is, or by its bytes in hex digits.
Result<std::string> store_key(const std::string& text, bool hex);
std::string to_hex(const std::string& bytes);

}  // namespace stagelink::cli
