#pragma once

#include <span>

#include "cli/bench/suite/groups.h"

namespace stagelink::cli::bench {

// All groups of the suite `store`, in the order in which they run.
std::span<const Group> store_groups() noexcept;

// small small-omni-shm
Status run_store_small_group(SuiteContext& context);
// large-put large-get
Status run_store_large_group(SuiteContext& context);
// wake wake-cpu
Status run_store_wake_group(SuiteContext& context);
// yuanrong-1m yuanrong-16m small-yuanrong
Status run_store_yuanrong_group(SuiteContext& context);
// pending
Status run_store_pending_group(SuiteContext& context);
// encode encode-memcpy encode-fast-memcpy decode dict-put-get dict-put-get-small
Status run_store_payload_group(SuiteContext& context);

}  // namespace stagelink::cli::bench
