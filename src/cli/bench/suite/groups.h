#pragma once

#include <span>

#include "cli/bench/suite/suite_context.h"
#include "stagelink/status.h"

namespace stagelink::cli::bench {

// Cases that are measured together. A group adds its rows; a failure ends the suite.
struct Group {
  const char* name;
  Status (*run)(SuiteContext& context);
};

// All groups of the suite `engine`, in the order in which they run.
std::span<const Group> engine_groups() noexcept;

// shm-256 shm-4k shm-16k shm-64k, each also -alloc, -write, -alloc-write; -nt from 4k on.
Status run_copy_group(SuiteContext& context);
// shm-256-nixl shm-4k-nixl shm-16k-nixl shm-4k-mooncake
Status run_peer_group(SuiteContext& context);
// layers-80
Status run_layers_group(SuiteContext& context);
// submit submit-cancel
Status run_submit_group(SuiteContext& context);
// shm-8b shm-8b-py submit-py
Status run_small_group(SuiteContext& context);
// notify notify-asleep notify-asleep-cpu
Status run_notify_group(SuiteContext& context);
// hot-path
Status run_hot_path_group(SuiteContext& context);
// first
Status run_first_group(SuiteContext& context);
// register-10k register-10k-linear register-10k-flat register-10k-memory
Status run_register_group(SuiteContext& context);
// replay replay-write replay-seconds replay-write-seconds
Status run_replay_group(SuiteContext& context);

}  // namespace stagelink::cli::bench
