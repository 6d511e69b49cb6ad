#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "connector/pull/messages/stamp.h"
#include "stagelink/result.h"

namespace stagelink::pull {

class StampSlots;

// One place for a stamp; empty again when the slot goes.
//
// Thread-safety: a move-only value.
class StampSlot {
 public:
  StampSlot() noexcept = default;
  StampSlot(StampSlot&& other) noexcept
      : slots_(std::move(other.slots_)), index_(std::exchange(other.index_, 0)) {}
  StampSlot& operator=(StampSlot&& other) noexcept {
    std::swap(slots_, other.slots_);
    std::swap(index_, other.index_);
    return *this;
  }
  StampSlot(const StampSlot&) = delete;
  StampSlot& operator=(const StampSlot&) = delete;
  ~StampSlot() { clear(); }

  void write(const Stamp& stamp) noexcept;
  Stamp read() const noexcept;
  // Peers that look from now on find nothing; then the slot is free.
  void clear() noexcept;
  uint64_t offset() const noexcept { return uint64_t{index_} * sizeof(Stamp); }
  explicit operator bool() const noexcept { return slots_ != nullptr; }

 private:
  friend class StampSlots;
  StampSlot(std::shared_ptr<StampSlots> slots, uint32_t index) noexcept
      : slots_(std::move(slots)), index_(index) {}

  std::shared_ptr<StampSlots> slots_;
  uint32_t index_ = 0;
};

// The region of stamps: as many as a connector may have offers. What a connector reads of others'
// stamps lands in slots of its own.
//
// Thread-safety: all methods may run at the same time.
class StampSlots : public std::enable_shared_from_this<StampSlots> {
 public:
  // `memory` is full of zeros and holds whole stamps; `hold` keeps it there.
  static std::shared_ptr<StampSlots> create(std::span<std::byte> memory,
                                            std::shared_ptr<const void> hold);
  // Errors: limit.
  Result<StampSlot> take() SL_EXCLUDES(mutex_);
  uint32_t taken() const SL_EXCLUDES(mutex_);

 private:
  friend class StampSlot;
  StampSlots(std::span<Stamp> stamps, std::shared_ptr<const void> hold) noexcept
      : stamps_(stamps), hold_(std::move(hold)) {}
  void give_back(uint32_t index) SL_EXCLUDES(mutex_);

  const std::span<Stamp> stamps_;
  const std::shared_ptr<const void> hold_;
  mutable Mutex mutex_;
  uint32_t fresh_ SL_GUARDED_BY(mutex_) = 0;  // From here on never used.
  std::vector<uint32_t> free_ SL_GUARDED_BY(mutex_);
};

}  // namespace stagelink::pull
