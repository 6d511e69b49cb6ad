#include "connector/pull/memory/stamp_slots.h"

#include <atomic>
#include <cstring>

#include <fmt/format.h>

namespace stagelink::pull {

void StampSlot::write(const Stamp& stamp) noexcept {
  Stamp& place = slots_->stamps_[index_];
  std::memcpy(&place, &stamp, sizeof stamp);
  // Before the offer is told to anybody, and a cleared stamp before its payload's memory is reused.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

Stamp StampSlot::read() const noexcept {
  Stamp stamp;
  std::memcpy(&stamp, &slots_->stamps_[index_], sizeof stamp);
  return stamp;
}

void StampSlot::clear() noexcept {
  if (slots_ == nullptr) return;
  Stamp nothing;
  nothing.magic = 0;
  write(nothing);
  const std::shared_ptr<StampSlots> slots = std::move(slots_);
  slots_ = nullptr;
  slots->give_back(index_);
}

std::shared_ptr<StampSlots> StampSlots::create(std::span<std::byte> memory,
                                               std::shared_ptr<const void> hold) {
  const std::span stamps(reinterpret_cast<Stamp*>(memory.data()), memory.size() / sizeof(Stamp));
  std::shared_ptr<StampSlots> slots(new StampSlots(stamps, std::move(hold)));
  MutexLock lock(slots->mutex_);
  slots->free_.reserve(stamps.size());  // So that giving back never allocates.
  return slots;
}

Result<StampSlot> StampSlots::take() {
  MutexLock lock(mutex_);
  if (!free_.empty()) {
    const uint32_t index = free_.back();
    free_.pop_back();
    return StampSlot(shared_from_this(), index);
  }
  if (fresh_ < stamps_.size()) {
    return StampSlot(shared_from_this(), fresh_++);
  }
  return Status(Reason::kLimit,
                fmt::format("{} payloads are held; see `max_offers`", stamps_.size()));
}

uint32_t StampSlots::taken() const {
  MutexLock lock(mutex_);
  return fresh_ - static_cast<uint32_t>(free_.size());
}

void StampSlots::give_back(uint32_t index) {
  MutexLock lock(mutex_);
  free_.push_back(index);
}

}  // namespace stagelink::pull
