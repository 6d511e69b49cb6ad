#pragma once

namespace stagelink::cli::replay {

// While it lives, SIGINT and SIGTERM do not end the process but set a flag and interrupt poll(2).
//
// Thread-safety: one object at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static bool interrupted() noexcept;
};

}  // namespace stagelink::cli::replay
