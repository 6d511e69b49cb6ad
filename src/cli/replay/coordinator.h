#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "cli/replay/rank_handle.h"
#include "cli/replay/report/progress.h"
#include "cli/replay/run_plan.h"
#include "cli/replay/run_record.h"
#include "stagelink/result.h"

namespace stagelink::cli::replay {

// The parent of a run: has the ranks started, hands out the requests, watches over the processes
// and gathers what they report. A rank that dies or falls silent is started again, at most
// `retries` times, and its open requests are handed out once more. Nothing here waits without a
// deadline, and however the run ends, no process stays.
//
// Thread-safety: one thread.
class Coordinator {
 public:
  // `prefill` starts the prefill ranks, here or in the other half of the run; decode ranks run
  // here. It outlives this object.
  Coordinator(const RunPlan& plan, RankStarter& prefill);

  // Failures of the run are part of the record; a Status means that it could not begin.
  Result<RunRecord> run(Progress& progress);

 private:
  using Clock = std::chrono::steady_clock;
  struct Slot {
    RankConfig config;
    std::unique_ptr<RankHandle> process;
    bool ready = false;
    bool failed_to_start = false;  // And it is known why.
    std::string descriptor;        // Hex; of its present life.
    Clock::time_point last_heard;
    uint32_t restarts = 0;
    std::deque<uint32_t> queued;  // Requests for this decode rank, in order.
    std::deque<uint32_t> open;    // Handed out, not answered.
    bool is_decode() const noexcept { return config.role == Role::kDecode; }
  };

  Status start_all();
  Status start(Slot& slot);
  Status wait_ready();
  void serve(Progress& progress);
  void stop_all();
  void stop(Role role);

  void turn(Duration patience);  // Waits for events and takes them.
  void take_events(Slot& slot);
  void take(Slot& slot, const nlohmann::json& event);
  void on_ready(Slot& slot, const nlohmann::json& event);
  void introduce(const Slot& prefill, Slot& decode);
  void announce_gone(const Slot& decode);
  void on_end(Slot& slot);
  void bury(Slot& slot);
  void restart(Slot& slot);
  void watch();
  void end_late_starters(Clock::time_point now);
  void hand_out();
  Clock::time_point due_at(uint32_t request) const;
  Duration until_due() const;
  bool finished() const;
  void fail(std::string what);
  void note(std::string what);

  const RunPlan& plan_;
  RankStarter& prefill_;
  LocalRanks decode_;
  std::vector<Slot> slots_;
  RunRecord record_;
  std::string runtime_dir_;
  bool aborted_ = false;  // A rank cannot be replaced.
  bool stopping_ = false;
  Clock::time_point begun_;
  Clock::time_point next_ping_;
};

}  // namespace stagelink::cli::replay
