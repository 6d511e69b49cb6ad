#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "stagelink/region.h"
#include "transport/transport.h"

namespace stagelink::transport {

// What is known about one remote region when a session is prepared.
struct RouteFacts {
  bool shm_enabled = false;  // In EngineOptions::transports.
  bool cma_enabled = false;
  bool same_host = false;  // Reached over its UNIX socket.
  // What carries the stream to the peer: kStream, kTcp, or nothing that is enabled and possible.
  std::optional<TransportKind> stream = std::nullopt;
  bool secret = false;     // A secret is set: no byte moves that the owner does not see.
  bool shareable = false;  // The owner allocated it.
  uint64_t cma_min_run = 0;
  // Ok: the fd was received, its seals and nonce checked, and it is mapped.
  Status mapping = Status(Reason::kUnsupported, "not tried");
  // Ok: the identity of the peer's process was read out of its memory.
  Status cma = Status(Reason::kUnsupported, "not tried");
};

struct Route {
  std::optional<TransportKind> kind;  // None: this region cannot be reached.
  std::string why;                    // One sentence, for people.
  // Serves batches whose runs are shorter than cma_min_run on average. None: `kind` serves them
  // all.
  std::optional<TransportKind> short_runs = std::nullopt;
};

// The only places where a transport is chosen. Pure functions.
Route select_route(const RouteFacts& facts);

// What a batch asks of the regions of one route: bytes in how many runs, neighbours merged.
struct BatchShape {
  uint64_t bytes = 0;
  uint64_t runs = 0;
};
// Of a route that reaches its region.
TransportKind select_for_batch(const Route& route, const BatchShape& shape, uint64_t cma_min_run);

}  // namespace stagelink::transport
