#include <utility>

#include "engine/core.h"
#include "engine/link/peer_state.h"
#include "engine/link/stream_link.h"
#include "transport/fault/fault_copy_transport.h"
#include "transport/shm/shm_transport.h"

namespace stagelink::engine {

std::unique_ptr<transport::CopyTransport> EngineCore::make_copier(
    PeerState& peer, std::vector<transport::GuardedRow> guards) {
  auto copier = std::make_unique<transport::ShmTransport>(peer.lanes(), peer.lost_flag(), kernel_,
                                                          std::move(guards));
  if (faults_ == nullptr) return copier;
  return std::make_unique<transport::FaultCopyTransport>(std::move(copier), faults_,
                                                         cutter(peer.shared_from_this()));
}

}  // namespace stagelink::engine
