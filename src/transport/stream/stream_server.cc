#include "transport/stream/stream_server.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace stagelink::transport {

StreamServer::StreamServer(Poller& poller, memory::RegionRegistry& registry,
                           metrics::EngineMetrics& metrics) noexcept
    : poller_(poller), registry_(registry), metrics_(metrics) {}

StreamServer::~StreamServer() = default;

Status StreamServer::serve(UniqueFd fd, InstanceId peer, bool checked) {
  const auto same = std::count_if(servings_.begin(), servings_.end(),
                                  [&](const auto& serving) { return serving->peer() == peer; });
  if (static_cast<size_t>(same) >= kMaxConnectionsPerPeer) {
    return Status(Reason::kLimit,
                  fmt::format("peer {} has {} data connections already", peer.to_string(), same));
  }
  SL_ASSIGN(auto serving, StreamServing::create({poller_, registry_, metrics_}, std::move(fd), peer,
                                                checked, *this));
  servings_.push_back(std::move(serving));
  return {};
}

// From the back, because a serving that ends is replaced by the last one.
void StreamServer::tick() {
  for (size_t i = servings_.size(); i-- > 0;) servings_[i]->tick();
}

void StreamServer::drop(InstanceId peer) {
  std::erase_if(servings_, [&](const auto& serving) { return serving->peer() == peer; });
}

// The serving has told of its failure.
void StreamServer::on_closed(StreamServing& serving, const Status&) {
  const auto at = std::find_if(servings_.begin(), servings_.end(),
                               [&](const auto& held) { return held.get() == &serving; });
  if (at == servings_.end()) return;
  std::swap(*at, servings_.back());
  servings_.pop_back();
}

}  // namespace stagelink::transport
