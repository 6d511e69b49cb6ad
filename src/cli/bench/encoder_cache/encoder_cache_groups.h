#pragma once

#include <span>

#include "cli/bench/suite/groups.h"

namespace stagelink::cli::bench {

// All groups of the suite `encoder-cache`, in the order in which they run.
std::span<const Group> encoder_cache_groups() noexcept;

// one batch
Status run_embedding_group(SuiteContext& context);
// registry registry-p99 registry-entry
Status run_registry_group(SuiteContext& context);
// waiters waiters-served waiters-threads waiters-idle-cpu
Status run_waiters_group(SuiteContext& context);

}  // namespace stagelink::cli::bench
