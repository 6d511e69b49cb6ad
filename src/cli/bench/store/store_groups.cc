#include "cli/bench/store/store_groups.h"

#include <array>

namespace stagelink::cli::bench {

namespace {

constexpr std::array kStoreGroups = {
    Group{"small", run_store_small_group},     Group{"large", run_store_large_group},
    Group{"wake", run_store_wake_group},       Group{"yuanrong", run_store_yuanrong_group},
    Group{"payload", run_store_payload_group}, Group{"pending", run_store_pending_group},
};

}  // namespace

std::span<const Group> store_groups() noexcept { return kStoreGroups; }

}  // namespace stagelink::cli::bench
