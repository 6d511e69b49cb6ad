#pragma once

#include <cstdint>

#include "stagelink/status.h"

namespace stagelink {

// Tells, with one load and no system call, whether this process is a forked child of the one that
// called arm(). Works by a page that the kernel wipes in children (MADV_WIPEONFORK).
//
// Thread-safety: all methods may run at the same time.
class ForkGuard {
 public:
  // Maps the page. To be called before the first object that must not survive a fork exists.
  // In a forked child it re-arms for the child itself: objects remember the token they were
  // created under.
  static uint64_t arm() noexcept;
  // True if the object with this token was created by another process.
  static bool forked(uint64_t token) noexcept;
};

// invalid_state (forked), naming `what`.
Status forked_status(const char* what);

}  // namespace stagelink
