#include <utility>

#include "engine/core.h"
#include "engine/link/peer_state.h"
#include "transport/shm/shm_transport.h"

namespace stagelink::engine {

std::unique_ptr<transport::CopyTransport> EngineCore::make_copier(
    PeerState& peer, std::vector<transport::GuardedRow> guards) {
  return std::make_unique<transport::ShmTransport>(peer.lanes(), peer.lost_flag(), kernel_,
                                                   std::move(guards));
}

}  // namespace stagelink::engine
