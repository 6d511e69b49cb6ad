#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "base/text.h"
#include "cli/bench/engine_bench.h"
#include "cli/bench/suites.h"
#include "cli/bench/target/target_loop.h"
#include "cli/commands.h"

namespace stagelink::cli {

namespace {

using bench::EngineBenchOptions;
using bench::MemoryKind;
using bench::Op;
using bench::SuiteContext;
using bench::SuiteOptions;
using bench::TargetOptions;

int fail(const Status& status) {
  fmt::print(stderr, "error: {}\n", status.to_string());
  return status.code() == Code::kInvalidArgument ? kExitUsage : kExitFailed;
}

int bench_engine(const EngineBenchOptions& options, bool json) {
  const auto report = bench::run_engine_bench(options);
  if (!report.ok()) return fail(report.status());
  fmt::print("{}\n", json ? (*report).json() : (*report).table());
  return kExitOk;
}

// A row that does not hold is a finding, not a failure, unless the caller asked for it.
int bench_suite(const std::string& name, const SuiteOptions& options, bool json, bool strict) {
  SuiteContext context(options);
  const Status status = bench::run_suite(name, context);
  fmt::print("{}\n",
             json ? bench::rows_as_json(context.rows()) : bench::rows_as_table(context.rows()));
  if (!status.ok()) return fail(status);
  bool all_hold = true;
  for (const bench::CaseResult& row : context.rows()) all_hold = all_hold && row.holds();
  return all_hold || !strict ? kExitOk : kExitFailed;
}

void add_huge_pages(CLI::App& command, std::string& effort) {
  command
      .add_option("--huge-pages", effort,
                  "Huge pages for memory that the engines allocate: off, try or require")
      ->capture_default_str()
      ->check(CLI::IsMember({"off", "try", "require"}));
}

void add_engine(CLI::App& app, int& exit_code) {
  struct Arguments {
    EngineBenchOptions options;
    std::string block = "4KiB";
    std::string op = "read";
    std::string memory = "private";
    std::string target_memory = "shareable";
    bool json = false;
    bool no_pin = false;
  };
  const auto args = std::make_shared<Arguments>();
  CLI::App* const command =
      app.add_subcommand("engine", "Read or write random blocks of another process's memory");
  command
      ->add_option("--transport", args->options.transport,
                   "auto, shm (mapped memory), cma (the kernel's copy), unix or tcp (sockets)")
      ->check(CLI::IsMember({"auto", "shm", "cma", "unix", "tcp"}));
  command->add_option("--block", args->block, "Size of a block, e.g. 4KiB");
  command->add_option("--blocks", args->options.shape.blocks, "Blocks in one batch");
  command->add_option("--op", args->op, "read or write")->check(CLI::IsMember({"read", "write"}));
  command->add_option("--memory", args->memory, "Local memory: private or shareable")
      ->check(CLI::IsMember({"private", "shareable"}));
  command->add_option("--target-memory", args->target_memory, "The same in the target process")
      ->check(CLI::IsMember({"private", "shareable"}));
  add_huge_pages(*command, args->options.huge_pages);
  command->add_option("--repetitions", args->options.repetitions, "Undisturbed ones to keep")
      ->check(CLI::Range(1, 10000));
  command->add_flag("--no-pin", args->no_pin, "Leave the choice of cores to the kernel");
  command->add_flag("--json", args->json, "Print one JSON object");
  command->callback([args, &exit_code] {
    const Result<uint64_t> block_bytes = parse_bytes(args->block);
    if (!block_bytes.ok()) {
      exit_code = fail(block_bytes.status());
      return;
    }
    args->options.shape.block_bytes = *block_bytes;
    args->options.op = args->op == "write" ? Op::kWrite : Op::kRead;
    const auto kind_of = [](const std::string& text) {
      return text == "shareable" ? MemoryKind::kShareable : MemoryKind::kPrivate;
    };
    args->options.memory = kind_of(args->memory);
    args->options.target_memory = kind_of(args->target_memory);
    args->options.pin = !args->no_pin;
    exit_code = bench_engine(args->options, args->json);
  });
}

void add_suite(CLI::App& app, int& exit_code) {
  struct Arguments {
    std::string suite;
    SuiteOptions options;
    bool json = false;
    bool strict = false;
    bool no_pin = false;
  };
  const auto args = std::make_shared<Arguments>();
  CLI::App* const command = app.add_subcommand("suite", "Measure every case that has a target");
  command->add_option("name", args->suite, "engine, network, moriio, store, pull or encoder-cache")
      ->required()
      ->check(CLI::IsMember({"engine", "network", "moriio", "store", "pull", "encoder-cache"}));
  add_huge_pages(*command, args->options.huge_pages);
  command->add_option("--only", args->options.only, "One group of cases, e.g. copy");
  command->add_option("--repetitions", args->options.repetitions, "Undisturbed ones to keep")
      ->check(CLI::Range(1, 10000));
  command->add_option("--peers-python", args->options.peers_python,
                      "Python with NIXL and Mooncake (default: build/peers-venv)");
  command->add_option("--python", args->options.python,
                      "Python with the stagelink package (default: .venv, then python3)");
  command->add_option("--scripts", args->options.scripts_dir, "The folder bench/ of the sources");
  command->add_option("--trace", args->options.trace,
                      "Trace of the replay (default: ../shared/data, if it is there)");
  command->add_flag("--no-pin", args->no_pin, "Leave the choice of cores to the kernel");
  command->add_flag("--strict", args->strict, "Exit with 1 if a case does not hold");
  command->add_flag("--json", args->json, "Print a JSON list");
  command->callback([args, &exit_code] {
    args->options.pin = !args->no_pin;
    exit_code = bench_suite(args->suite, args->options, args->json, args->strict);
  });
}

// The other process of a benchmark; started by it alone.
void add_target(CLI::App& app, int& exit_code) {
  struct Arguments {
    TargetOptions options;
    pid_t parent = 0;
    int core = -1;
  };
  const auto args = std::make_shared<Arguments>();
  CLI::App* const command = app.add_subcommand(bench::kTargetCommand)->group("");
  command->add_option("--parent", args->parent)->required();
  command->add_option("--transports", args->options.transports)->delimiter(',')->required();
  command->add_option("--huge-pages", args->options.huge_pages)->required();
  command->add_option("--core", args->core);
  command->callback([args, &exit_code] {
    if (args->core >= 0) args->options.core = args->core;
    exit_code = bench::run_target(args->options, args->parent);
  });
}

}  // namespace

void add_bench_command(CLI::App& app, int& exit_code) {
  CLI::App* const command =
      app.add_subcommand("bench", "Measure speed against this machine's own memcpy");
  command->require_subcommand(1);
  add_engine(*command, exit_code);
  add_suite(*command, exit_code);
  add_target(app, exit_code);
}

}  // namespace stagelink::cli
