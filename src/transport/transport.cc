#include "transport/transport.h"

namespace stagelink::transport {

const char* transport_name(TransportKind kind) noexcept {
  switch (kind) {
    case TransportKind::kShm: return "shm";
    case TransportKind::kStream: return "unix";
  }
  return "unknown";
}

}  // namespace stagelink::transport
