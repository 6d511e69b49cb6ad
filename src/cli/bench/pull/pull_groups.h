#pragma once

#include <span>

#include "cli/bench/suite/groups.h"

namespace stagelink::cli::bench {

// All groups of the suite `pull`, in the order in which they run.
std::span<const Group> pull_groups() noexcept;

// get-4k get-4k-compat zmq-round-trip
Status run_pull_small_group(SuiteContext& context);
// get-1m get-16m get-256m get-16m-tcp get-256m-tcp
Status run_pull_large_group(SuiteContext& context);
// ranks fan-out put-cost
Status run_pull_rank_group(SuiteContext& context);

}  // namespace stagelink::cli::bench
