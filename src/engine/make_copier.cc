#include <utility>

#include "engine/core.h"
#include "engine/link/peer_state.h"
#include "engine/link/stream_link.h"
#include "transport/cma/cma_transport.h"
#include "transport/fault/fault_copy_transport.h"
#include "transport/shm/shm_transport.h"
#include "transport/split_copier.h"

namespace stagelink::engine {

std::unique_ptr<transport::CopyTransport> EngineCore::make_copier(PeerState& peer,
                                                                  const SessionView& view) {
  std::vector<transport::GuardedRow> guards;
  std::vector<uint8_t> by_cma;
  bool mapped = false;
  for (const RemoteRegion& remote : view.remotes) {
    guards.push_back(remote.guard);
    by_cma.push_back(remote.route.kind == transport::TransportKind::kCma ? 1 : 0);
    mapped = mapped || remote.mapping != nullptr;
  }
  std::unique_ptr<transport::CopyTransport> copier;
  if (mapped) {
    copier = std::make_unique<transport::ShmTransport>(peer.shared()->lanes(), peer.lost_flag(),
                                                       kernel_, guards);
  }
  if (view.cma != nullptr) {
    auto cma = std::make_unique<transport::CmaTransport>(view.cma, peer.shared()->lanes(),
                                                         peer.lost_flag(), std::move(guards));
    if (mapped) {
      copier = std::make_unique<transport::SplitCopier>(std::move(copier), std::move(cma),
                                                        std::move(by_cma));
    } else {
      copier = std::move(cma);
    }
  }
  if (copier == nullptr || faults_ == nullptr) return copier;
  return std::make_unique<transport::FaultCopyTransport>(std::move(copier), faults_,
                                                         cutter(peer.shared_from_this()));
}

}  // namespace stagelink::engine
