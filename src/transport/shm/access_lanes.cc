#include "transport/shm/access_lanes.h"

#include <bit>

#include "base/futex.h"

namespace stagelink::transport {

std::optional<uint32_t> AccessLanes::claim() noexcept {
  uint32_t free = free_.load(std::memory_order_relaxed);
  while (free != 0) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(free));
    // Acquire pairs with the release in leave(): the lane's previous user is done with it.
    if (free_.compare_exchange_weak(free, free & ~(uint32_t{1} << lane),
                                    std::memory_order_acquire)) {
      return lane;
    }
  }
  return std::nullopt;
}

void AccessLanes::enter(uint32_t lane, uint64_t rows_mask) noexcept {
  wire::AccessLane& slot = page_.lanes[lane];
  slot.rows_mask.store(rows_mask, std::memory_order_relaxed);  // Published by the next store.
  const uint64_t epoch = table_.epoch.load(std::memory_order_seq_cst);
  // Sequentially consistent, before the caller reads any row: see the head of access_lanes.h.
  slot.epoch.store(epoch, std::memory_order_seq_cst);
}

void AccessLanes::leave(uint32_t lane) noexcept {
  wire::AccessLane& slot = page_.lanes[lane];
  // Sequentially consistent, before lane_waiters is read: the owner sets lane_waiters, then reads
  // the lane, so one of the two sees the other.
  slot.epoch.store(0, std::memory_order_seq_cst);
  if (table_.lane_waiters.load(std::memory_order_seq_cst) != 0) {
    slot.wake.fetch_add(1);
    futex_wake_all(slot.wake, FutexScope::kShared);
  }
  free_.fetch_or(uint32_t{1} << lane, std::memory_order_release);  // Pairs with claim().
}

std::optional<uint32_t> lane_inside(const wire::PeerPage& page, uint32_t row,
                                    uint64_t epoch) noexcept {
  for (uint32_t lane = 0; lane < wire::kLaneCount; ++lane) {
    const uint64_t seen = page.lanes[lane].epoch.load(std::memory_order_seq_cst);
    if (seen == 0 || seen >= epoch) continue;
    if ((page.lanes[lane].rows_mask.load(std::memory_order_relaxed) & row_bit(row)) != 0) {
      return lane;
    }
  }
  return std::nullopt;
}

}  // namespace stagelink::transport
