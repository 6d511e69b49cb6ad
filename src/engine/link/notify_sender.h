#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "engine/link/notify_port.h"
#include "stagelink/result.h"

namespace stagelink::engine {

class EngineCore;

// Notifications to one peer, in order. Those that follow a transfer cannot be refused any more when
// it has ended: they wait here for room.
//
// Thread-safety: all methods may run at the same time.
class NotifySender {
 public:
  // `core` outlives the sender.
  NotifySender(EngineCore& core, std::string peer_name, std::unique_ptr<NotifyPort> port);

  // Errors: busy (ring_full).
  Status send(Reason outcome, std::span<const std::byte> payload) SL_EXCLUDES(mutex_);
  // False: there was no room, so that flush() is to be called until waits() is false. More than a
  // bound of them are dropped and reported.
  bool send_later(Reason outcome, std::vector<std::byte> payload) SL_EXCLUDES(mutex_);
  void flush() SL_EXCLUDES(mutex_);
  bool waits() const noexcept { return waits_.load(); }

 private:
  struct Waiting {
    Reason outcome;
    std::vector<std::byte> payload;
  };
  bool push(Reason outcome, std::span<const std::byte> payload) SL_REQUIRES(mutex_);
  bool push_waiting() SL_REQUIRES(mutex_);

  EngineCore& core_;
  const std::string peer_name_;
  Mutex mutex_;
  const std::unique_ptr<NotifyPort> port_ SL_GUARDED_BY(mutex_);
  std::deque<Waiting> waiting_ SL_GUARDED_BY(mutex_);
  std::atomic<bool> waits_{false};
};

}  // namespace stagelink::engine
