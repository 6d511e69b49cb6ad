#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "engine/link/shared_view.h"
#include "stagelink/result.h"
#include "transport/shm/notify_ring.h"

// The two ways of a notification to a peer.
namespace stagelink::engine {

class NotifyPort {
 public:
  virtual ~NotifyPort() = default;
  // False: the peer has no room now, and nothing was sent. One thread at a time.
  virtual bool push(Reason outcome, std::span<const std::byte> payload) = 0;
};

// Into the ring of the peer page, and the bell.
//
// Thread-safety: one thread at a time.
class RingNotifyPort final : public NotifyPort {
 public:
  // `view` outlives the port.
  explicit RingNotifyPort(SharedView& view) noexcept : view_(view), producer_(view.page()) {}
  bool push(Reason outcome, std::span<const std::byte> payload) override;

 private:
  SharedView& view_;
  transport::NotifyProducer producer_;
};

// As frames on the control connection. The peer puts them into a ring of `window` bytes of its own
// and tells how much of it was taken; what it has no room for is not sent.
//
// Thread-safety: push() by one thread at a time; the others may run at the same time.
class FrameNotifyPort final : public NotifyPort {
 public:
  using Payload = std::vector<std::byte>;  // Of one kNotify frame.

  // `hand_over` makes the progress loop call take() soon.
  FrameNotifyPort(uint64_t window, std::function<void()> hand_over);
  bool push(Reason outcome, std::span<const std::byte> payload) override SL_EXCLUDES(mutex_);
  // What is to be sent, in order.
  std::vector<Payload> take() SL_EXCLUDES(mutex_);
  // The peer's kNotifyAck. Errors: corrupt (frame), if it has taken more than was sent.
  Status on_ack(std::span<const std::byte> payload) SL_EXCLUDES(mutex_);

 private:
  const uint64_t window_;
  const std::function<void()> hand_over_;
  Mutex mutex_;
  uint64_t sent_ SL_GUARDED_BY(mutex_) = 0;
  uint64_t acknowledged_ SL_GUARDED_BY(mutex_) = 0;
  std::vector<Payload> waiting_ SL_GUARDED_BY(mutex_);
};

}  // namespace stagelink::engine
