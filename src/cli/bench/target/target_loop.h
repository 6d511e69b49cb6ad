#pragma once

#include <sys/types.h>

#include "cli/bench/target/target_process.h"

namespace stagelink::cli::bench {

// The main loop of the target process: owns an engine and serves the requests that arrive on
// kTargetSocket until it is told to stop or the other end closes. Returns an exit code.
int run_target(const TargetOptions& options, pid_t parent);

}  // namespace stagelink::cli::bench
