#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/mutex.h"
#include "memory/free_bitmap.h"
#include "memory/wait_line.h"
#include "stagelink/result.h"

namespace stagelink::memory {

class BlockAllocator;

// Blocks that belong to its holder and go back when it is destroyed: whatever way a request ends,
// nothing is lost. A cache that keeps blocks for long takes the plain numbers by detach() and gives
// them back by BlockAllocator::free(). The allocator outlives it.
//
// Thread-safety: a move-only value.
class Blocks {
 public:
  Blocks() noexcept = default;
  Blocks(Blocks&& other) noexcept
      : allocator_(std::exchange(other.allocator_, nullptr)), ids_(std::move(other.ids_)) {}
  Blocks& operator=(Blocks&& other) noexcept;
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;
  ~Blocks();

  std::span<const uint32_t> ids() const noexcept { return ids_; }
  std::vector<uint32_t> detach() noexcept;

 private:
  friend class BlockAllocator;
  Blocks(BlockAllocator& allocator, std::vector<uint32_t> ids) noexcept
      : allocator_(&allocator), ids_(std::move(ids)) {}

  BlockAllocator* allocator_ = nullptr;
  std::vector<uint32_t> ids_;
};

// Blocks of one size in a span of memory, which it never touches. Hands out the lowest free numbers
// in ascending order, so that blocks of one request tend to be neighbours and merge into longer
// copies.
//
// Thread-safety: all methods may run at the same time.
class BlockAllocator {
 public:
  struct Usage {
    uint32_t total = 0;
    uint32_t free = 0;
    uint32_t used = 0;
    uint32_t high_water = 0;  // The most that were ever used at a time.
    uint32_t waiting = 0;     // Requests in line.
  };

  // Uses the whole blocks in `memory`. Errors: invalid_argument (no whole block, or more than
  // 2^31).
  static Result<std::unique_ptr<BlockAllocator>> create(std::span<std::byte> memory,
                                                        size_t block_bytes);
  BlockAllocator(const BlockAllocator&) = delete;
  BlockAllocator& operator=(const BlockAllocator&) = delete;

  // All `count` blocks or none; waits in line up to the deadline. Errors: invalid_argument (0);
  // limit (too_large) at once if there are not that many in all; no_space at the deadline, or at
  // once if it has passed already.
  Result<Blocks> allocate(uint32_t count, const Deadline& deadline);
  // All or none. Errors: invalid_argument names the block that does not exist or is free already.
  Status free(std::span<const uint32_t> ids);

  size_t block_bytes() const noexcept { return block_bytes_; }
  uint64_t offset_of(uint32_t id) const noexcept { return uint64_t{id} * block_bytes_; }
  std::span<std::byte> bytes_of(uint32_t id) const noexcept {
    return memory_.subspan(offset_of(id), block_bytes_);
  }
  Usage usage() const;

 private:
  BlockAllocator(std::span<std::byte> memory, size_t block_bytes, uint32_t total)
      : memory_(memory), block_bytes_(block_bytes), total_(total), free_ids_(total), free_(total) {}
  Blocks take(uint32_t count) SL_REQUIRES(mutex_);

  const std::span<std::byte> memory_;
  const size_t block_bytes_;
  const uint32_t total_;
  mutable Mutex mutex_;
  WaitLine line_ SL_GUARDED_BY(mutex_);
  FreeBitmap free_ids_ SL_GUARDED_BY(mutex_);
  uint32_t free_ SL_GUARDED_BY(mutex_);
  uint32_t high_water_ SL_GUARDED_BY(mutex_) = 0;
};

}  // namespace stagelink::memory
