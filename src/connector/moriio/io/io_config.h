#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stagelink/engine_options.h"

namespace stagelink::moriio {

struct IoEngineConfig {
  std::string host;      // Empty: as option `bind` of the engine says, 127.0.0.1 by default.
  uint16_t port = 0;     // 0: any free one, published in the engine's descriptor.
  EngineOptions engine;  // All else. `name` is overwritten by the engine's key.
};

// What of mori's RdmaBackendConfig has a meaning here, and what is ours.
struct BackendConfig {
  // By preference, of shm cma unix tcp. Empty: for RDMA all that the engine's options allow, for
  // TCP tcp alone.
  std::vector<std::string> transports;
  // Tell the peer of the end of each transfer: see IoEngine::pop_inbound_transfer_status().
  bool enable_notification = true;
};

}  // namespace stagelink::moriio
