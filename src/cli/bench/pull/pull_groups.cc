#include "cli/bench/pull/pull_groups.h"

#include <array>

namespace stagelink::cli::bench {

namespace {

constexpr std::array kPullGroups = {
    Group{"small", run_pull_small_group},
    Group{"large", run_pull_large_group},
    Group{"ranks", run_pull_rank_group},
};

}  // namespace

std::span<const Group> pull_groups() noexcept { return kPullGroups; }

}  // namespace stagelink::cli::bench
