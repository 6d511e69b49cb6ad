#pragma once

#include <condition_variable>
#include <mutex>

#include "base/deadline.h"

#if defined(__clang__)
#define SL_TSA(x) __attribute__((x))
#else
#define SL_TSA(x)
#endif

#define SL_GUARDED_BY(x) SL_TSA(guarded_by(x))
#define SL_REQUIRES(...) SL_TSA(requires_capability(__VA_ARGS__))
#define SL_EXCLUDES(...) SL_TSA(locks_excluded(__VA_ARGS__))

namespace stagelink {

// std::mutex that clang can reason about (-Wthread-safety). Within one process only.
class SL_TSA(capability("mutex")) Mutex {
 public:
  void lock() SL_TSA(acquire_capability()) { mutex_.lock(); }
  void unlock() SL_TSA(release_capability()) { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

class SL_TSA(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) SL_TSA(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() SL_TSA(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits on a Mutex that the caller holds. Callers loop over their condition.
class CondVar {
 public:
  void wait(Mutex& mutex) SL_REQUIRES(mutex) { cv_.wait(mutex); }
  // False once the deadline has passed.
  bool wait_until(Mutex& mutex, const Deadline& deadline) SL_REQUIRES(mutex) {
    const Duration left = deadline.left();
    if (left == Duration::zero()) return false;
    cv_.wait_for(mutex, left);
    return true;
  }
  void notify_one() noexcept { cv_.notify_one(); }
  void notify_all() noexcept { cv_.notify_all(); }

 private:
  std::condition_variable_any cv_;
};

}  // namespace stagelink
