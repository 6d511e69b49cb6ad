#include "connector/moriio/rank/peer_route.h"

#include <algorithm>

#include "connector/moriio/ports.h"

namespace stagelink::moriio {
namespace {

using block_layout::HeadRoute;
using block_layout::TpPair;

Result<PeerRoute> route_to(const PeerAddress& peer, uint32_t tp_rank, uint32_t tp_size) {
  const RankAddress rank{fold_dp_rank(peer.dp_rank, peer.dp_size_local), tp_rank, tp_size};
  const uint32_t pod = pod_of(peer.dp_rank, peer.dp_size_local);
  PeerRoute route;
  route.tp_rank = tp_rank;
  route.handshake.host = route.notify.host = pod < peer.hosts.size() ? peer.hosts[pod] : peer.host;
  SL_ASSIGN(route.handshake.port, rank_port(peer.handshake_port, rank));
  SL_ASSIGN(route.notify.port, rank_port(peer.notify_port, rank));
  return route;
}

Result<std::vector<PeerRoute>> with_addresses(const OwnPlace& own, const PeerAddress& peer,
                                              const std::vector<HeadRoute>& heads) {
  const uint32_t theirs = known_tp_size(peer.tp_size, own.tp_size);
  std::vector<PeerRoute> routes;
  for (const HeadRoute& head : heads) {
    SL_ASSIGN(PeerRoute route, route_to(peer, head.remote_rank, theirs));
    if (theirs != own.tp_size && own.total_kv_heads > 1) route.slice = head.slice;
    routes.push_back(std::move(route));
  }
  return routes;
}

}  // namespace

Result<std::vector<PeerRoute>> routes_as_consumer(const OwnPlace& own, const PeerAddress& peer) {
  const TpPair pair{own.total_kv_heads, known_tp_size(peer.tp_size, own.tp_size), own.tp_size};
  SL_ASSIGN(const auto heads, block_layout::routes_to(pair, own.tp_rank));
  return with_addresses(own, peer, heads);
}

Result<std::vector<PeerRoute>> routes_as_producer(const OwnPlace& own, const PeerAddress& peer) {
  const TpPair pair{own.total_kv_heads, own.tp_size, known_tp_size(peer.tp_size, own.tp_size)};
  SL_ASSIGN(const auto heads, block_layout::routes_from(pair, own.tp_rank));
  return with_addresses(own, peer, heads);
}

Result<std::vector<PeerRoute>> ranks_to_release(const OwnPlace& own, const PeerAddress& peer) {
  SL_ASSIGN(std::vector<PeerRoute> routes, routes_as_consumer(own, peer));
  const uint32_t theirs = known_tp_size(peer.tp_size, own.tp_size);
  if (theirs <= own.tp_size) return routes;
  // A share of the producer's ranks is ours; those without a route are told all the same.
  const uint32_t share = theirs / own.tp_size;
  for (uint32_t rank = own.tp_rank * share; rank < (own.tp_rank + 1) * share; ++rank) {
    const bool known = std::any_of(routes.begin(), routes.end(),
                                   [&](const PeerRoute& route) { return route.tp_rank == rank; });
    if (known) continue;
    SL_ASSIGN(PeerRoute route, route_to(peer, rank, theirs));
    routes.push_back(std::move(route));
  }
  return routes;
}

}  // namespace stagelink::moriio
