#pragma once

#include <cstdint>

#include "cli/replay/rank_config.h"
#include "cli/replay/workload/workload.h"

namespace stagelink::cli::replay {

// Sets the engine's fault rates for a run with this seed (0: none), so that any workload sees some
// faults of each kind, and that the largest request still gets through within a few retries.
void set_faults(uint64_t seed, const WorkloadSize& size, RankConfig& config);

}  // namespace stagelink::cli::replay
