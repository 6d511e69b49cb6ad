#pragma once

#include <memory>
#include <string_view>

#include "cli/bench/rig/rig.h"
#include "cli/bench/suite/suite_context.h"

namespace stagelink::cli::bench {

// Two processes whose regions are private memory, reached by one transport or by whatever `auto`
// chooses. Content is in place. Drops the suite's own rig, so that only one pair of gigabytes
// exists. Errors: those of Rig, and unreachable if this machine has no such way.
Result<std::unique_ptr<Rig>> make_private_rig(SuiteContext& context, std::string_view transport);

MeasureOptions measure_options(const SuiteContext& context, Rig& rig);

}  // namespace stagelink::cli::bench
