#pragma once

#include <span>

#include "cli/bench/suite/groups.h"

namespace stagelink::cli::bench {

// All groups of the suite `moriio`, in the order in which they run.
std::span<const Group> moriio_groups() noexcept;

// write write-nixl write-nixl-default
Status run_write_group(SuiteContext& context);
// write-private
Status run_write_private_group(SuiteContext& context);
// notify notify-idle-cpu
Status run_notice_group(SuiteContext& context);
// isolation
Status run_isolation_group(SuiteContext& context);
// planner
Status run_planner_group(SuiteContext& context);

}  // namespace stagelink::cli::bench
