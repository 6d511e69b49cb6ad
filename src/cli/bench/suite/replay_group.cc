#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/bench/rig/process_load.h"
#include "cli/bench/suite/child_output.h"
#include "cli/bench/suite/groups.h"

namespace stagelink::cli::bench {

namespace {

constexpr double kRatioTarget = 0.8;
constexpr double kSecondsTarget = 120;
constexpr const char* kTrace = "../shared/data/mooncake_conversation_trace.jsonl";
constexpr auto kReplayTimeout = std::chrono::seconds(300);

struct Replay {
  std::string trace;
  const char* mode;
  std::string name;
};

Status run_replay(SuiteContext& context, const Replay& replay) {
  const std::vector<std::string> words = {
      context.exe(), "replay",      "--trace", replay.trace, "--requests", "200",   "--verify",
      "full",        "--transport", "shm",     "--mode",     replay.mode,  "--json"};
  const double start_us = now_us();
  SL_ASSIGN(const std::string output, run_child(words, kReplayTimeout));
  const double seconds = (now_us() - start_us) * 1e-6;
  const auto json = nlohmann::json::parse(output, nullptr, false);
  if (!json.is_object() || !json.contains("ratio_to_limit")) {
    return Status(Reason::kCorrupt, "replay printed no ratio_to_limit");
  }
  if (json.value("wrong_blocks", 1) != 0 || json.value("lost_requests", 1) != 0) {
    return Status(Reason::kCorrupt, "replay moved a wrong block or lost a request");
  }
  context.add({.name = replay.name,
               .value = json["ratio_to_limit"].get<double>(),
               .unit = "x",
               .goal = Goal::kAtLeast,
               .target = kRatioTarget});
  context.add({.name = replay.name + "-seconds",
               .value = seconds,
               .unit = "s",
               .goal = Goal::kAtMost,
               .target = kSecondsTarget});
  return Status();
}

}  // namespace

Status run_replay_group(SuiteContext& context) {
  std::string trace = context.options().trace;
  if (trace.empty()) trace = context.beside_sources(kTrace, "");
  if (trace.empty()) {
    SuiteContext::leave_out("replay", "there is no trace; --trace names one");
    return Status();
  }
  context.drop_rig();  // Its gigabytes are not needed any more.
  SL_TRY(run_replay(context, {trace, "read", "replay"}));
  return run_replay(context, {trace, "write", "replay-write"});
}

}  // namespace stagelink::cli::bench
