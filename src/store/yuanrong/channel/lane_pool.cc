#include "store/yuanrong/channel/lane_pool.h"

namespace stagelink::store::yuanrong {
namespace {

using namespace std::chrono_literals;

// How often lanes are looked at that the broker gives back: nobody is told of those.
constexpr auto kReclaimInterval = 10ms;

constexpr uint64_t lane_bit(uint32_t lane) noexcept { return uint64_t{1} << lane; }

}  // namespace

std::optional<LanePool::Taken> LanePool::take(bool waits, const Deadline& deadline) {
  const MutexLock lock(mutex_);
  for (;;) {
    if (ended_) return std::nullopt;
    reclaim();
    if (const auto lane = find(waits)) {
      const bool first_use = (used_ & lane_bit(*lane)) == 0;
      busy_ |= lane_bit(*lane);
      used_ |= lane_bit(*lane);
      return Taken{*lane, first_use};
    }
    if (deadline.passed()) return std::nullopt;
    // A timeout is no end: the deadline is looked at above.
    (void)freed_.wait_until(mutex_, Deadline::earlier(deadline, Deadline::in(kReclaimInterval)));
  }
}

std::optional<uint32_t> LanePool::find(bool waits) {
  const uint32_t first = waits ? 1 : 0;
  const uint32_t last = waits ? kLanesForWaiting : kLanes - 1;
  for (uint32_t lane = first; lane <= last; ++lane) {
    if ((busy_ & lane_bit(lane)) == 0) return lane;
  }
  return std::nullopt;
}

void LanePool::reclaim() {
  for (uint32_t lane = 0; abandoned_ != 0 && lane < kLanes; ++lane) {
    if ((abandoned_ & lane_bit(lane)) == 0) continue;
    if (page_.lane[lane].state.load() != static_cast<uint32_t>(LaneState::kFree)) continue;
    abandoned_ &= ~lane_bit(lane);
    busy_ &= ~lane_bit(lane);
  }
}

void LanePool::give_back(uint32_t lane) {
  const MutexLock lock(mutex_);
  busy_ &= ~lane_bit(lane);
  freed_.notify_one();
}

void LanePool::abandon(uint32_t lane) {
  const MutexLock lock(mutex_);
  abandoned_ |= lane_bit(lane);
}

void LanePool::end() {
  const MutexLock lock(mutex_);
  ended_ = true;
  freed_.notify_all();
}

}  // namespace stagelink::store::yuanrong
