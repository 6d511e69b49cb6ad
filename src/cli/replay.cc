#include <iostream>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/replay/run.h"

namespace stagelink::cli {
namespace {

using replay::Mode;
using replay::ReplayOptions;
using replay::RunOutput;
using replay::Verify;

constexpr const char* kReplayExamples = R"(
Examples:
  stagelink replay --trace conversation.jsonl
  stagelink replay --trace conversation.jsonl --mode write --transport unix --plot run.svg
  stagelink replay --trace conversation.jsonl --model deepseek-v3 --scale 1/8 --memory 2GiB
  stagelink replay --trace conversation.jsonl --rate 10 --prefill-ranks 2 --decode-ranks 2
  stagelink replay --trace conversation.jsonl --fault-seed 7 --json
  stagelink replay --trace conversation.jsonl --role prefill --bind 10.0.0.1:7000 --peer 10.0.0.2:0
  stagelink replay --trace conversation.jsonl --role decode --bind 10.0.0.2:0 --peer 10.0.0.1:7000

Exit code: 0 if every request was served and every compared byte was right, 1 if not, 2 if the
options or the trace are wrong, 130 if interrupted.)";

struct Texts {
  std::string mode = "read";
  std::string verify = "full";
  std::string checksum = "on";
  std::string memory;
  std::string timeout;
  std::string role = "all";
  std::string start_timeout;
  std::string ready_timeout;
  std::string fault_seed = "0";
};

void add_workload_options(CLI::App& command, ReplayOptions& options) {
  command
      .add_option("--trace", options.trace,
                  "Requests to replay, one JSON object a line (Mooncake's format)")
      ->required()
      ->type_name("FILE");
  command.add_option("--requests", options.requests, "How many of them, from the start; 0: all")
      ->capture_default_str();
  command.add_option("--model", options.model, "Whose KV cache to move: " + replay::model_names())
      ->capture_default_str()
      ->type_name("NAME");
  command
      .add_option("--scale", options.scale,
                  "Share of the model's layers to keep, such as 1/32, 0.5 or 1; pieces keep "
                  "their true size. Default: one layer")
      ->type_name("SHARE");
  command
      .add_option("--dtype", options.dtype,
                  "Element type: bf16, fp16, fp32, fp8 or int8. Default: the model's")
      ->type_name("TYPE");
  command.add_option("--block-tokens", options.block_tokens, "Tokens in a block")
      ->capture_default_str();
  command
      .add_option("--rate", options.rate,
                  "Replay at this many times the trace's pace; 0: each request follows the one "
                  "before (closed loop)")
      ->capture_default_str()
      ->type_name("FACTOR");
  command.add_option("--in-flight", options.in_flight,
                     "Requests under way at once for each decode rank. Default: 1, with --rate 16");
}

void add_run_options(CLI::App& command, ReplayOptions& options, Texts& texts) {
  command.add_option("--prefill-ranks", options.prefill_ranks, "Processes that fill blocks")
      ->capture_default_str();
  command.add_option("--decode-ranks", options.decode_ranks, "Processes that want them")
      ->capture_default_str();
  command
      .add_option("--transport", options.transport,
                  "shm: mapped memory only; cma: private memory, copied by the kernel; unix, tcp: "
                  "private memory, through a socket; auto: the best that works")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "shm", "cma", "unix", "tcp"}));
  command.add_option("--mode", texts.mode, "read: decode pulls; write: prefill pushes")
      ->capture_default_str()
      ->check(CLI::IsMember({"read", "write"}));
  command
      .add_option("--verify", texts.verify, "Compare all bytes, those of every 16th block, or none")
      ->capture_default_str()
      ->check(CLI::IsMember({"full", "sample", "off"}));
  command
      .add_option("--checksum", texts.checksum,
                  "Send a hash of each block with the list of blocks, and compare on arrival")
      ->capture_default_str()
      ->check(CLI::IsMember({"on", "off"}));
  command
      .add_option("--memory", texts.memory,
                  "Size of each rank's pool, such as 2GiB. Default: twice the largest request")
      ->type_name("SIZE");
  command
      .add_option("--retries", options.retries,
                  "How often a request may be tried again, and a rank started again")
      ->capture_default_str();
  command
      .add_option("--timeout", texts.timeout,
                  "For one batch and one answer. Default: 10s, with faults 3s")
      ->type_name("DURATION");
  command
      .add_option("--ready-timeout", texts.ready_timeout,
                  "For a rank to start and to touch its memory. Default: 60s, and 10s for each "
                  "GiB of all ranks here")
      ->type_name("DURATION");
  command
      .add_option("--fault-seed", texts.fault_seed,
                  "Inject faults (delays, drops, cuts, flipped bits), the same for the same "
                  "seed; 0: none")
      ->capture_default_str()
      ->type_name("NUMBER");
}

void add_half_options(CLI::App& command, ReplayOptions& options, Texts& texts) {
  command
      .add_option("--role", texts.role,
                  "all: everything here; prefill, decode: this half, the other one runs elsewhere "
                  "with the same options")
      ->capture_default_str()
      ->check(CLI::IsMember({"all", "prefill", "decode"}));
  command
      .add_option("--bind", options.bind,
                  "Address of this half: its engines listen there, the prefill half at this port")
      ->type_name("HOST:PORT");
  command
      .add_option("--peer", options.peer,
                  "Address of the other half; the decode half connects to the prefill half's port")
      ->type_name("HOST:PORT");
  command
      .add_option("--start-timeout", texts.start_timeout,
                  "How long a half waits for the other one. Default: 60s")
      ->type_name("DURATION");
  command
      .add_option("--secret-file", options.secret_file,
                  "Halves and engines prove that they hold the same secret")
      ->type_name("FILE");
}

void add_output_options(CLI::App& command, RunOutput& output) {
  command.add_flag("--json", output.json, "Print one JSON object instead of a table");
  command.add_option("--plot", output.plot, "Write a picture: batch time by size, throughput")
      ->type_name("FILE.svg");
}

// `text` into `value`, where zero stands for a default; the user leaves the option out for that.
template <typename T>
Status read_text(const char* name, const std::string& text, Result<T> (*parse)(std::string_view),
                 T& value) {
  if (text.empty()) return {};
  const auto parsed = parse(text);
  if (!parsed.ok()) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("--{}: {}", name, parsed.status().message()));
  }
  if (*parsed == T{}) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("--{}: `{}` is none; leave it out for the default", name, text));
  }
  value = *parsed;
  return {};
}

// As text, because the parser of the command line would take -1 for a large number.
Status read_fault_seed(const std::string& text, uint64_t& seed) {
  const auto parsed = parse_integer(text);
  if (!parsed.ok() || *parsed < 0) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("--fault-seed: {} is not a whole number of 0 or more below 2^63",
                              escape_control(text)));
  }
  seed = static_cast<uint64_t>(*parsed);
  return {};
}

Status read_texts(const Texts& texts, ReplayOptions& options) {
  options.mode = texts.mode == "write" ? Mode::kWrite : Mode::kRead;
  options.verify = texts.verify == "full"     ? Verify::kFull
                   : texts.verify == "sample" ? Verify::kSample
                                              : Verify::kOff;
  options.checksum = texts.checksum == "on";
  options.half = texts.role == "prefill"  ? replay::Half::kPrefill
                 : texts.role == "decode" ? replay::Half::kDecode
                                          : replay::Half::kAll;
  SL_TRY(read_fault_seed(texts.fault_seed, options.fault_seed));
  SL_TRY(read_text("memory", texts.memory, parse_bytes, options.memory_bytes));
  SL_TRY(read_text("timeout", texts.timeout, parse_duration, options.timeout));
  SL_TRY(read_text("start-timeout", texts.start_timeout, parse_duration, options.start_timeout));
  return read_text("ready-timeout", texts.ready_timeout, parse_duration, options.ready_timeout);
}

}  // namespace

void add_replay_command(CLI::App& app, int& exit_code) {
  CLI::App* const command = app.add_subcommand(
      "replay", "Replay a request trace between prefill and decode processes, every byte checked");
  command->footer(kReplayExamples);
  struct Arguments {
    ReplayOptions options;
    RunOutput output;
    Texts texts;
  };
  const auto arguments = std::make_shared<Arguments>();
  add_workload_options(*command, arguments->options);
  add_run_options(*command, arguments->options, arguments->texts);
  add_half_options(*command, arguments->options, arguments->texts);
  add_output_options(*command, arguments->output);
  command->callback([arguments, &exit_code] {
    if (const Status read = read_texts(arguments->texts, arguments->options); !read.ok()) {
      std::cerr << "error: " << read.message() << "\n";
      exit_code = kExitUsage;
      return;
    }
    exit_code = replay::run(arguments->options, arguments->output);
  });
}

}  // namespace stagelink::cli
