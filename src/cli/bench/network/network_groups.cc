#include "cli/bench/network/network_groups.h"

#include <array>

namespace stagelink::cli::bench {

namespace {

constexpr std::array kNetworkGroups = {
    Group{"private", run_private_group}, Group{"private-peers", run_private_peer_group},
    Group{"tcp", run_tcp_group},         Group{"tcp-peers", run_tcp_peer_group},
    Group{"shapes", run_shape_group},    Group{"many-peers", run_many_peers_group},
};

}  // namespace

std::span<const Group> network_groups() noexcept { return kNetworkGroups; }

}  // namespace stagelink::cli::bench
