#pragma once

#include <cstdint>

#include "base/deadline.h"
#include "base/mutex.h"

namespace stagelink::pull {

// Counts what may have made room: claims and offers that have ended, pieces that were freed. Who
// waits reads it before the look that finds none, and so misses nothing that comes behind it.
//
// Thread-safety: all methods may run at the same time, also under the locks of those that count.
class RoomSignal {
 public:
  void made() SL_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  uint64_t count() SL_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return count_;
  }
  // Until it is another number than `seen`; false at the deadline.
  bool await(uint64_t seen, const Deadline& deadline) SL_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (count_ == seen) {
      if (!changed_.wait_until(mutex_, deadline)) return false;
    }
    return true;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  uint64_t count_ SL_GUARDED_BY(mutex_) = 0;
};

}  // namespace stagelink::pull
