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
constexpr auto kTimeout = std::chrono::seconds(300);

Status run_replay(SuiteContext& context, const char* mode, const std::string& name) {
  std::vector<std::string> words = {context.exe(), "replay", "--requests",  "200",
                                    "--verify",    "full",   "--transport", "shm",
                                    "--mode",      mode,     "--json"};
  if (!context.options().trace.empty()) {
    words.insert(words.end(), {"--trace", context.options().trace});
  }
  const double start_us = now_us();
  SL_ASSIGN(const std::string output, run_child(words, kTimeout));
  const double seconds = (now_us() - start_us) * 1e-6;
  const auto json = nlohmann::json::parse(output, nullptr, false);
  if (!json.is_object() || !json.contains("ratio_to_limit")) {
    return Status(Reason::kCorrupt, "replay printed no ratio_to_limit");
  }
  if (json.value("wrong_blocks", 1) != 0 || json.value("lost_requests", 1) != 0) {
    return Status(Reason::kCorrupt, "replay moved a wrong block or lost a request");
  }
  context.add({.name = name,
               .value = json["ratio_to_limit"].get<double>(),
               .unit = "x",
               .goal = Goal::kAtLeast,
               .target = kRatioTarget});
  context.add({.name = name + "-seconds",
               .value = seconds,
               .unit = "s",
               .goal = Goal::kAtMost,
               .target = kSecondsTarget});
  return Status();
}

}  // namespace

Status run_replay_group(SuiteContext& context) {
  context.drop_rig();  // Its gigabytes are not needed any more.
  SL_TRY(run_replay(context, "read", "replay"));
  return run_replay(context, "write", "replay-write");
}

}  // namespace stagelink::cli::bench
