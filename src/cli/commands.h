#pragma once

#include <initializer_list>

#include <CLI/CLI.hpp>

namespace stagelink::cli {

// Exit codes that scripts can use.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;  // The work was done and its outcome is bad.
inline constexpr int kExitUsage = 2;   // Nothing was done: wrong options or input.

// One function for each command, one file for each function. It adds a sub-command to `app`, whose
// callback runs the command and stores its exit code in `exit_code`. Both outlive the parsing.
using AddCommand = void (*)(CLI::App& app, int& exit_code);

// Declare a command here and name it in the list.
void add_bench_command(CLI::App& app, int& exit_code);
void add_config_command(CLI::App& app, int& exit_code);
void add_demo_command(CLI::App& app, int& exit_code);
void add_doctor_command(CLI::App& app, int& exit_code);
void add_proxy_command(CLI::App& app, int& exit_code);
void add_registry_command(CLI::App& app, int& exit_code);
void add_replay_command(CLI::App& app, int& exit_code);
void add_replay_rank_command(CLI::App& app, int& exit_code);  // Hidden: a process of `replay`.
void add_stat_command(CLI::App& app, int& exit_code);
void add_store_command(CLI::App& app, int& exit_code);
inline constexpr std::initializer_list<AddCommand> kCommands = {
    add_bench_command, add_config_command,   add_demo_command,   add_doctor_command,
    add_proxy_command, add_registry_command, add_replay_command, add_replay_rank_command,
    add_stat_command,  add_store_command,
};

}  // namespace stagelink::cli
