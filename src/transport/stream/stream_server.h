#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/unique_fd.h"
#include "memory/region_registry.h"
#include "metrics/engine_metrics.h"
#include "stagelink/region.h"
#include "stagelink/result.h"
#include "transport/poller.h"
#include "transport/stream/stream_serving.h"

namespace stagelink::transport {

// The data connections on which peers read and write this engine's regions.
//
// Thread-safety: used by the poller's thread only.
class StreamServer final : private StreamServing::Owner {
 public:
  // All three outlive the server.
  StreamServer(Poller& poller, memory::RegionRegistry& registry,
               metrics::EngineMetrics& metrics) noexcept;
  StreamServer(const StreamServer&) = delete;
  StreamServer& operator=(const StreamServer&) = delete;
  ~StreamServer();

  // Whether another data connection of this peer would be served. Errors: limit.
  Status check_room(InstanceId peer) const;
  // `fd` is a non-blocking stream socket whose handshake (Role::kData) is over. Errors: limit
  // (nofile, or more than kMaxConnectionsPerPeer of this peer).
  Status serve(UniqueFd fd, InstanceId peer, StreamTraits traits = {});
  // Lets go of regions that have been retired and of requests whose deadline has passed. Call it
  // after RegionRegistry::retire() and from a timer. Connections without requests are not looked
  // at.
  void tick();
  // Ends the connections of a peer that is gone.
  void drop(InstanceId peer);
  size_t connections() const noexcept { return servings_.size(); }

  static constexpr size_t kMaxConnectionsPerPeer = 64;

 private:
  // What the connections of one peer share.
  struct PeerShare {
    InstanceId peer;
    std::vector<StreamServing*> servings;
    std::shared_ptr<ListBudget> budget = std::make_shared<ListBudget>();
  };
  void on_busy(StreamServing& serving) override;
  void on_write(StreamServing& serving) override;
  void end(StreamServing& serving);
  void on_closed(StreamServing& serving, const Status& why) override;
  PeerShare& share_of(InstanceId peer);
  void forget(const StreamServing& serving);

  Poller& poller_;
  memory::RegionRegistry& registry_;
  metrics::EngineMetrics& metrics_;
  std::vector<std::unique_ptr<StreamServing>> servings_;
  std::vector<StreamServing*> busy_;
  std::vector<PeerShare> shares_;
};

}  // namespace stagelink::transport
