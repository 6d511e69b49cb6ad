#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/deadline.h"
#include "connector/pull/memory/piece.h"
#include "connector/pull/memory/room_signal.h"
#include "memory/pool_allocator.h"
#include "stagelink/result.h"

namespace stagelink::pull {

// The memory that a connector puts from and gets into. It lives as long as one of its pieces.
//
// Thread-safety: all methods may run at the same time.
class Pool : public std::enable_shared_from_this<Pool> {
 public:
  // Asked every 100 ms by whoever waits for space; a failure ends the wait.
  using Stopped = std::function<Status()>;

  // `hold` keeps the memory there. Errors: invalid_argument (too small).
  static Result<std::shared_ptr<Pool>> create(std::span<std::byte> memory,
                                              std::shared_ptr<const void> hold);

  // Errors: invalid_argument (0 bytes), no_space, limit (too_large), those of `stopped`.
  Result<Piece> allocate(uint64_t bytes, const Deadline& deadline, const Stopped& stopped);

  bool contains(std::span<const std::byte> bytes) const noexcept;
  // Of bytes that it contains.
  uint64_t offset_of(std::span<const std::byte> bytes) const noexcept {
    return static_cast<uint64_t>(bytes.data() - memory_.data());
  }
  std::span<std::byte> memory() const noexcept { return memory_; }
  memory::PoolAllocator::Usage usage() const { return allocator_->usage(); }
  // Counts the pieces that are freed, and whatever else its holders count.
  const std::shared_ptr<RoomSignal>& room() const noexcept { return room_; }

 private:
  friend class PoolMemory;
  Pool(std::span<std::byte> memory, std::shared_ptr<const void> hold,
       std::unique_ptr<memory::PoolAllocator> allocator) noexcept;
  Piece piece_of(memory::PoolBuffer buffer);

  const std::span<std::byte> memory_;
  const std::shared_ptr<const void> hold_;
  const std::unique_ptr<memory::PoolAllocator> allocator_;
  const std::shared_ptr<RoomSignal> room_ = std::make_shared<RoomSignal>();
};

// What the shares of one piece have in common.
//
// Thread-safety: immutable.
class PoolMemory {
 public:
  PoolMemory(std::shared_ptr<const Pool> pool, memory::PoolBuffer buffer) noexcept
      : pool_(std::move(pool)), buffer_(std::move(buffer)) {}
  PoolMemory(const PoolMemory&) = delete;
  PoolMemory& operator=(const PoolMemory&) = delete;
  ~PoolMemory() {
    buffer_ = memory::PoolBuffer();
    pool_->room()->made();
  }

 private:
  const std::shared_ptr<const Pool> pool_;  // Outlives the buffer.
  memory::PoolBuffer buffer_;
};

}  // namespace stagelink::pull
