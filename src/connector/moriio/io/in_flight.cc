#include "connector/moriio/io/in_flight.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace stagelink::moriio {

void InFlight::add(StatusRef status) {
  bool full = false;
  {
    MutexLock lock(mutex_);
    statuses_.push_back(std::move(status));
    full = statuses_.size() >= sweep_at_;
  }
  if (full) sweep();
}

size_t InFlight::sweep() {
  std::vector<StatusRef> looked_at;
  {
    MutexLock lock(mutex_);
    looked_at.swap(statuses_);
  }
  const size_t over = std::erase_if(looked_at, [](const StatusRef& s) { return s->is_over(); });
  MutexLock lock(mutex_);
  std::move(looked_at.begin(), looked_at.end(), std::back_inserter(statuses_));
  sweep_at_ = std::max(kSweepFrom, 2 * statuses_.size());
  return over;
}

size_t InFlight::size() const {
  MutexLock lock(mutex_);
  return statuses_.size();
}

}  // namespace stagelink::moriio
