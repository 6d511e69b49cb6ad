#pragma once

#include <span>

#include "cli/bench/suite/groups.h"

namespace stagelink::cli::bench {

// All groups of the suite `store`, in the order in which they run.
std::span<const Group> store_groups() noexcept;

// small small-yuanrong small-omni-shm
Status run_store_small_group(SuiteContext& context);
// large-put large-get
Status run_store_large_group(SuiteContext& context);
// wake wake-cpu
Status run_store_wake_group(SuiteContext& context);

}  // namespace stagelink::cli::bench
