#pragma once

#include <atomic>
#include <cstdint>

#include "base/deadline.h"

namespace stagelink::memory {

// Counts local uses of a region (a transfer, a serving connection), and closes. Whoever pins also
// keeps the region's record alive until after its unpin() has returned.
//
// Thread-safety: all methods may run at the same time.
class PinGate {
 public:
  bool try_pin() noexcept;  // False once closed.
  void unpin() noexcept;
  void close() noexcept;  // No new pins.
  bool closed() const noexcept;
  // True once closed and unpinned; false at the deadline.
  bool wait_unpinned(const Deadline& deadline) noexcept;
  uint32_t pins() const noexcept;

 private:
  std::atomic<uint32_t> word_{0};  // pins | kClosed; futex.
};

}  // namespace stagelink::memory
