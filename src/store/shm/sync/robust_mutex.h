#pragma once

#include <cstdint>

#include <pthread.h>

#include "base/deadline.h"

namespace stagelink::store::shm {

enum class LockAnswer : uint8_t {
  kHeld,
  kHolderDied,  // Held; what it guards may be half done. Call mark_consistent() before unlock().
  kTimedOut,
  kBroken,  // The word is not a lock's, or a holder died while repairing and did not say so.
};

// The one lock of an arena: a robust mutex between processes, of the kind that also excludes
// processes of different pid namespaces (the recursive and the checking kinds do not: they compare
// thread ids, which repeat there). Never unmap its page while holding it: the kernel could not hand
// it on then.
//
// Thread-safety: as a mutex.
class RobustMutex {
 public:
  // The mutex lies in shared memory and outlives this.
  explicit RobustMutex(pthread_mutex_t& mutex) noexcept : mutex_(mutex) {}

  // For memory that nobody else sees yet.
  static bool init(pthread_mutex_t& mutex) noexcept;
  // Whether the word is of the kind that init() makes; the file may hold anything, at any time.
  bool is_sane() const noexcept;

  LockAnswer lock(const Deadline& deadline) noexcept;
  LockAnswer try_lock() noexcept;
  void mark_consistent() noexcept { (void)::pthread_mutex_consistent(&mutex_); }
  void unlock() noexcept;
  // Whether a holder has died and nobody has taken the lock since. A look, without taking it.
  bool holder_died() const noexcept;
  // The thread that holds it, as its own pid namespace numbers it; 0: nobody.
  int32_t holder_thread() const noexcept;

 private:
  uint32_t word() const noexcept;

  pthread_mutex_t& mutex_;
};

}  // namespace stagelink::store::shm
