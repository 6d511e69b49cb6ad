#include "transport/stream/stream_server.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace stagelink::transport {

StreamServer::StreamServer(Poller& poller, memory::RegionRegistry& registry,
                           metrics::EngineMetrics& metrics) noexcept
    : poller_(poller), registry_(registry), metrics_(metrics) {}

StreamServer::~StreamServer() = default;

Status StreamServer::check_room(InstanceId peer) const {
  for (const PeerShare& share : shares_) {
    if (share.peer != peer || share.servings.size() < kMaxConnectionsPerPeer) continue;
    return Status(Reason::kLimit, fmt::format("peer {} has {} data connections already",
                                              peer.to_string(), share.servings.size()));
  }
  return {};
}

Status StreamServer::serve(UniqueFd fd, InstanceId peer, StreamTraits traits) {
  SL_TRY(check_room(peer));
  PeerShare& share = share_of(peer);
  auto serving = StreamServing::create({poller_, registry_, metrics_, share.budget}, std::move(fd),
                                       peer, std::move(traits), *this);
  if (serving.ok()) {
    share.servings.push_back(serving->get());
    servings_.push_back(*std::move(serving));
  }
  std::erase_if(shares_, [](const PeerShare& unused) { return unused.servings.empty(); });
  return serving.status();
}

StreamServer::PeerShare& StreamServer::share_of(InstanceId peer) {
  const auto at = std::find_if(shares_.begin(), shares_.end(),
                               [&](const PeerShare& share) { return share.peer == peer; });
  if (at != shares_.end()) return *at;
  shares_.emplace_back().peer = peer;
  return shares_.back();
}

void StreamServer::on_busy(StreamServing& serving) { busy_.push_back(&serving); }

// One that is gone has taken itself off the list.
void StreamServer::tick() {
  for (size_t i = 0; i < busy_.size();) {
    StreamServing* const serving = busy_[i];
    if (serving->tick()) {
      ++i;
    } else if (i < busy_.size() && busy_[i] == serving) {
      busy_.erase(busy_.begin() + static_cast<ptrdiff_t>(i));
    }
  }
}

void StreamServer::drop(InstanceId peer) {
  std::erase_if(servings_, [&](const auto& serving) {
    if (serving->peer() != peer) return false;
    forget(*serving);
    return true;
  });
}

void StreamServer::on_write(StreamServing& serving) {
  std::vector<StreamServing*> orphaned;
  for (StreamServing* other : share_of(serving.peer()).servings) {
    if (other != &serving && other->has_orphaned_write()) orphaned.push_back(other);
  }
  for (StreamServing* other : orphaned) end(*other);
}

// The serving has told of its failure.
void StreamServer::on_closed(StreamServing& serving, const Status&) { end(serving); }

void StreamServer::end(StreamServing& serving) {
  const auto at = std::find_if(servings_.begin(), servings_.end(),
                               [&](const auto& held) { return held.get() == &serving; });
  if (at == servings_.end()) return;
  forget(serving);
  std::swap(*at, servings_.back());
  servings_.pop_back();
}

void StreamServer::forget(const StreamServing& serving) {
  std::erase(busy_, &serving);
  PeerShare& share = share_of(serving.peer());
  std::erase(share.servings, &serving);
  std::erase_if(shares_, [](const PeerShare& unused) { return unused.servings.empty(); });
}

}  // namespace stagelink::transport
