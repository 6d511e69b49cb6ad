#pragma once

#include <cstring>

#include <sched.h>

namespace stagelink::cli::bench {

// In this scope the calling thread, with all that it starts, runs on other cores than before.
//
// Thread-safety: one thread.
class CoreScope {
 public:
  // All that the kernel has.
  CoreScope() noexcept {
    cpu_set_t cores;
    std::memset(&cores, 0xff, sizeof cores);
    enter(cores);
  }
  // This one, if there is such.
  explicit CoreScope(int core) noexcept {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(static_cast<size_t>(core), &cores);
    enter(cores);
  }
  ~CoreScope() {
    if (entered_) ::sched_setaffinity(0, sizeof before_, &before_);
  }
  CoreScope(const CoreScope&) = delete;
  CoreScope& operator=(const CoreScope&) = delete;

 private:
  void enter(const cpu_set_t& cores) noexcept {
    entered_ = ::sched_getaffinity(0, sizeof before_, &before_) == 0 &&
               ::sched_setaffinity(0, sizeof cores, &cores) == 0;
  }

  cpu_set_t before_{};
  bool entered_ = false;
};

}  // namespace stagelink::cli::bench
