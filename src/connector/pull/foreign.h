#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "base/mutex.h"

namespace stagelink::pull {

// Answers a control message, at any time and from any thread, and never waits.
using ForeignAnswer = std::function<void(std::span<const std::byte> answer)>;

// Takes the control messages that are none of ours, on the thread that receives them, where it is
// not to wait. False: it is not for them either.
using ForeignMessages =
    std::function<bool(std::span<const std::byte> message, const ForeignAnswer& answer)>;

// Between a connector and whoever takes its foreign messages, which is made after it and ends
// before it.
//
// Thread-safety: all methods may run at the same time.
class ForeignHook {
 public:
  // Empty: nobody takes them. The one before is not called any more when this returns.
  void set(ForeignMessages taker) SL_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    taker_ = std::move(taker);
  }
  // For the connector, which may outlive whoever made the hook.
  static ForeignMessages messages(std::shared_ptr<ForeignHook> hook) {
    return
        [hook = std::move(hook)](std::span<const std::byte> message, const ForeignAnswer& answer) {
          return hook->take(message, answer);
        };
  }

 private:
  bool take(std::span<const std::byte> message, const ForeignAnswer& answer) SL_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return taker_ != nullptr && taker_(message, answer);
  }

  Mutex mutex_;
  ForeignMessages taker_ SL_GUARDED_BY(mutex_);
};

}  // namespace stagelink::pull
