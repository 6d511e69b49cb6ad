#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/unique_fd.h"
#include "connector/pull/data_plane.h"
#include "connector/pull/memory/pool.h"
#include "connector/pull/memory/stamp_slots.h"
#include "connector/pull/metrics.h"
#include "connector/pull/options.h"
#include "connector/zmq/socket.h"
#include "stagelink/engine.h"

namespace stagelink::pull {

// What one connector has at home: its engine, its memory, and the word that it is over. Sender and
// receiver share it.
//
// Thread-safety: all methods may run at the same time; the fields do not change.
struct Home {
  PullOptions options;
  std::string bound_host;  // Where engine and control port listen.
  InstanceId receiver;     // 128 random bits that say to senders who claims.
  std::shared_ptr<Engine> engine;
  std::shared_ptr<DataPlane> plane;           // Null: the engine moves the bytes.
  std::shared_ptr<const Region> pool_region;  // With a plane: that of the stamps.
  std::shared_ptr<const Region> stamp_region;
  std::shared_ptr<Pool> pool;
  std::shared_ptr<StampSlots> stamps;
  std::shared_ptr<zmq::Context> context;
  PullMetrics metrics;
  UniqueFd stop;  // An eventfd, readable once it is over.
  std::atomic<bool> closing{false};
  uint64_t fork_token = 0;

  // Ok, or invalid_state (closed, forked).
  Status usable() const;
  // The same, or cancelled.
  Status go_on(const std::function<bool()>& interrupted) const;
};

}  // namespace stagelink::pull
