#include "connector/moriio/io/remote_engine.h"

#include <fmt/format.h>

#include "base/endpoint.h"
#include "base/log.h"

namespace stagelink::moriio {

Result<std::shared_ptr<Peer>> RemoteEngine::peer(Engine& engine, InstanceId instance) {
  MutexLock lock(mutex_);
  if (dropped_.load()) {
    return Status(Reason::kInvalidState,
                  fmt::format("remote engine {} has been deregistered", desc_.key));
  }
  const bool fits =
      peer_ != nullptr && peer_->phase() != PeerPhase::kLost && peer_->instance() == instance;
  if (fits) return peer_;
  // A Peer that goes closes nothing that sessions still use: they hold it too.
  const std::string address = Endpoint{desc_.host, desc_.port}.to_string();
  SL_ASSIGN(Peer peer, engine.connect(address));
  peer_ = std::make_shared<Peer>(std::move(peer));
  if (peer_->instance() == instance) return peer_;
  Status stale(Reason::kSuperseded,
               fmt::format("the descriptor is of life {} of remote engine {}; now it is {}: send "
                           "new descriptors",
                           instance.to_string(), desc_.key, peer_->instance().to_string()));
  log_failure("memory descriptor", stale);
  return stale;
}

void RemoteEngine::drop() {
  dropped_.store(true);
  std::shared_ptr<Peer> peer;
  {
    MutexLock lock(mutex_);
    peer.swap(peer_);
  }
  if (peer != nullptr) (void)peer->close();
}

}  // namespace stagelink::moriio
