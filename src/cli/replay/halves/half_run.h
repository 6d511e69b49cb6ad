#pragma once

#include <memory>

#include "cli/replay/halves/remote_ranks.h"
#include "cli/replay/report/statistics.h"
#include "cli/replay/run_plan.h"
#include "cli/replay/run_record.h"

namespace stagelink::cli::replay {

// Where the prefill ranks of a run are started: here, or, for the decode half of a run, in the
// prefill half, which is waited for. Errors: those of go_to_prefill.
struct PrefillSide {
  std::unique_ptr<RankStarter> ranks;
  RemoteRanks* remote = nullptr;  // The same, if they are elsewhere.
};
Result<PrefillSide> prefill_side(const RunPlan& plan);

// What the other half printed at its end.
struct HalfReport {
  RunRecord record;
  Statistics statistics;
  int exit_code = 0;
};
// The life of the prefill half. Errors: those of wait_for_decode and RankHost.
Result<HalfReport> run_prefill_half(const RunPlan& plan);

}  // namespace stagelink::cli::replay
