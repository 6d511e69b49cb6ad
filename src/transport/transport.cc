#include "transport/transport.h"

namespace stagelink::transport {

const char* transport_name(TransportKind kind) noexcept {
  switch (kind) {
    case TransportKind::kShm: return "shm";
    case TransportKind::kCma: return "cma";
    case TransportKind::kStream: return "unix";
    case TransportKind::kTcp: return "tcp";
  }
  return "unknown";
}

}  // namespace stagelink::transport
