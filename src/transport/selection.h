#pragma once

#include <optional>
#include <string>

#include "stagelink/region.h"
#include "transport/transport.h"

namespace stagelink::transport {

// What is known about one remote region when a session is prepared.
struct RouteFacts {
  bool shm_enabled = false;     // In EngineOptions::transports.
  bool stream_enabled = false;
  bool same_host = false;
  bool shareable = false;       // The owner allocated it.
  // Ok: the fd was received, its seals and nonce checked, and it is mapped.
  Status mapping = Status(Reason::kUnsupported, "not tried");
};

struct Route {
  std::optional<TransportKind> kind;  // None: this region cannot be reached.
  std::string why;                    // One sentence, for people.
};

// The only place where a transport is chosen. A pure function.
Route select_route(const RouteFacts& facts);

}  // namespace stagelink::transport
