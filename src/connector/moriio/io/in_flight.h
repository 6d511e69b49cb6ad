#pragma once

#include <cstddef>
#include <vector>

#include "base/mutex.h"
#include "connector/moriio/io/transfer_status.h"

namespace stagelink::moriio {

// The engine's hold on the statuses of transfers that run. A transfer that is over but was never
// looked at still takes one of the engine's places; sweep() gives such places back.
//
// Thread-safety: all methods may run at the same time.
class InFlight {
 public:
  void add(StatusRef status) SL_EXCLUDES(mutex_);
  // Lets go of those that are over. How many those were.
  size_t sweep() SL_EXCLUDES(mutex_);
  size_t size() const SL_EXCLUDES(mutex_);

 private:
  static constexpr size_t kSweepFrom = 64;

  mutable Mutex mutex_;
  std::vector<StatusRef> statuses_ SL_GUARDED_BY(mutex_);
  size_t sweep_at_ SL_GUARDED_BY(mutex_) = kSweepFrom;  // Twice what the last sweep left.
};

}  // namespace stagelink::moriio
