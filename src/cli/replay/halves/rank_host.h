#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/replay/control_channel.h"
#include "cli/replay/halves/half_message.h"
#include "cli/replay/rank_process.h"
#include "cli/replay/run_plan.h"

namespace stagelink::cli::replay {

// The prefill half: runs the prefill ranks that the decode half asks for, passes messages on in
// both directions, and ends with the decode half's report. When the decode half is lost, its ranks
// end.
//
// Thread-safety: one thread.
class RankHost {
 public:
  RankHost(const RunPlan& plan, ControlChannel channel, std::string where);

  struct Outcome {
    nlohmann::json report;
    int exit_code = 0;
  };
  // Errors: peer_lost; corrupt (frame); cancelled on Ctrl-C. No process is left in any case.
  Result<Outcome> serve();

 private:
  using Clock = std::chrono::steady_clock;
  struct Slot {
    std::unique_ptr<RankProcess> process;
    RankLife life;
  };

  Status turn();
  void wait();
  Status take(const nlohmann::json& message);
  Status take_report(const nlohmann::json& message);
  void start(RankLife life);
  Status pass_on(Slot& slot);
  void on_end(Slot& slot);
  void stop_all();

  const RunPlan& plan_;
  ControlChannel channel_;
  const std::string where_;
  std::string runtime_dir_;
  std::vector<Slot> slots_;  // By rank.
  std::optional<Outcome> outcome_;
  Clock::time_point last_heard_;
  Clock::time_point next_pulse_;
};

}  // namespace stagelink::cli::replay
