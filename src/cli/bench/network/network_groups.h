#pragma once

#include <span>

#include "cli/bench/suite/groups.h"

namespace stagelink::cli::bench {

// All groups of the suite `network`, in the order in which they run.
std::span<const Group> network_groups() noexcept;

// private-256 cma-4k cma-64k
Status run_private_group(SuiteContext& context);
// private-4k-ucx122 private-4k-ucx113 private-4k-nixl
Status run_private_peer_group(SuiteContext& context);
// tcp-4k tcp-64k, each also -plain; tcp-64m-plain tcp-8b
Status run_tcp_group(SuiteContext& context);
// tcp-4k-nixl tcp-4k-mooncake tcp-4k-ucx
Status run_tcp_peer_group(SuiteContext& context);
// shape-shm-adjacent -strided -scattered -submit, and the same of shape-tcp
Status run_shape_group(SuiteContext& context);
// peers-1000 peers-1000-memory
Status run_many_peers_group(SuiteContext& context);

}  // namespace stagelink::cli::bench
