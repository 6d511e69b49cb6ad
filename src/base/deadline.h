#pragma once

#include <chrono>
#include <cstdint>

#include "stagelink/engine_options.h"

namespace stagelink {

// A point on the monotonic clock up to which something may wait.
//
// Thread-safety: a value.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline in(Duration timeout) noexcept { return after(Clock::now(), timeout); }
  // For a caller that has just looked at the clock.
  static Deadline after(Clock::time_point now, Duration timeout) noexcept {
    if (timeout < Duration::zero()) timeout = Duration::zero();
    if (timeout > kLongest) timeout = kLongest;
    return Deadline(now + timeout);
  }
  static Deadline earlier(Deadline a, Deadline b) noexcept { return a.at_ < b.at_ ? a : b; }

  bool passed() const noexcept { return Clock::now() >= at_; }
  Duration left() const noexcept {
    const Duration left = at_ - Clock::now();
    return left > Duration::zero() ? left : Duration::zero();
  }
  // For poll(2) and epoll_wait(2): rounded up, so that waking means the deadline has passed.
  int left_ms() const noexcept {
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left()).count();
    return ms > 1'000'000'000 ? 1'000'000'000 : static_cast<int>(ms);
  }

  // Nothing waits for longer than this, whatever a caller asks for.
  static constexpr Duration kLongest = std::chrono::hours(24 * 365);

 private:
  explicit Deadline(Clock::time_point at) noexcept : at_(at) {}
  Clock::time_point at_;
};

}  // namespace stagelink
