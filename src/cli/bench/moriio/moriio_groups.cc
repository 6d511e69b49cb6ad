#include "cli/bench/moriio/moriio_groups.h"

#include <array>

namespace stagelink::cli::bench {

namespace {

constexpr std::array kMoriioGroups = {
    Group{"write", run_write_group},     Group{"write-private", run_write_private_group},
    Group{"notify", run_notice_group},   Group{"isolation", run_isolation_group},
    Group{"planner", run_planner_group},
};

}  // namespace

std::span<const Group> moriio_groups() noexcept { return kMoriioGroups; }

}  // namespace stagelink::cli::bench
