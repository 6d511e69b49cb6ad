#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/endpoint.h"
#include "connector/moriio/move/move.h"
#include "connector/moriio/wrapper/transfer_event.h"

namespace stagelink::moriio {

// What computes a layer, as far as a write must wait for it. Also carries whatever its host wants
// to find again in plan().
class LayerTicket {
 public:
  virtual ~LayerTicket() = default;
  // Returns when the layer's bytes are in memory. Called once, without locks, by the writer's
  // thread.
  virtual Status synchronize() = 0;
};

// Write one layer's blocks of one transfer.
struct WriteTask {
  std::string request_id;
  std::string transfer_id;
  std::string layer;
  std::unique_ptr<LayerTicket> ticket;  // Null: nothing to wait for.
  Deadline::Clock::time_point enqueued = Deadline::Clock::now();
};

// Whoever knows caches, layouts and sessions.
//
// Thread-safety: called by the writer's thread only, without locks.
class WriterHost {
 public:
  virtual ~WriterHost() = default;
  // The notify port of the rank that is written to, by the first task of a transfer; nullopt:
  // nobody is told.
  virtual Result<std::optional<Endpoint>> consumer_of(const Allocation& allocation,
                                                      const WriteTask& task) = 0;
  // The batches of some layers of one transfer. Errors end the transfer, except busy: asked again
  // soon.
  virtual Result<std::vector<Move>> plan(const Allocation& allocation,
                                         std::span<const WriteTask> tasks) = 0;
};

}  // namespace stagelink::moriio
