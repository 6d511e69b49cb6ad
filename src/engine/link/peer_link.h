#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/endpoint.h"
#include "base/unique_fd.h"
#include "engine/link/shared_view.h"
#include "stagelink/region.h"
#include "transport/cma/cma_owner.h"

namespace stagelink::engine {

// What the handshake gave us of a peer.
struct PeerLink {
  InstanceId instance;
  std::string name;
  uint32_t pid = 0;
  uint32_t max_notification_bytes = 0;
  uint32_t notify_window = 0;  // Bytes of the ring that it keeps for us.
  UniqueFd control;
  bool checked = false;  // Its frames carry sums.
  // Null: the control connection goes over TCP, and nothing is shared.
  std::unique_ptr<SharedView> shared;
  std::shared_ptr<transport::CmaOwner> cma;  // Null: its memory cannot be copied with cma,
  Status why_no_cma;                         // and why.
  // Where data connections go.
  std::string socket_path;          // Used if the control connection goes over it too.
  std::vector<Endpoint> addresses;  // TCP, tried in turn.
};

}  // namespace stagelink::engine
