#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "base/deadline.h"
#include "base/mutex.h"
#include "memory/wait_line.h"
#include "stagelink/result.h"

namespace stagelink::memory {

class PoolAllocator;

// A piece of a pool that belongs to its holder and goes back when it is destroyed. One that has to
// outlive its holder is detach()ed to its offset and given back by PoolAllocator::free(). The
// allocator outlives it.
//
// Thread-safety: a move-only value.
class PoolBuffer {
 public:
  PoolBuffer() noexcept = default;
  PoolBuffer(PoolBuffer&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)),
        offset_(other.offset_),
        bytes_(std::exchange(other.bytes_, {})) {}
  PoolBuffer& operator=(PoolBuffer&& other) noexcept;
  PoolBuffer(const PoolBuffer&) = delete;
  PoolBuffer& operator=(const PoolBuffer&) = delete;
  ~PoolBuffer();

  std::span<std::byte> bytes() const noexcept { return bytes_; }  // Exactly what was asked for.
  uint64_t offset() const noexcept { return offset_; }            // In the pool's memory.
  uint64_t detach() noexcept;

 private:
  friend class PoolAllocator;
  PoolBuffer(PoolAllocator& pool, uint64_t offset, std::span<std::byte> bytes) noexcept
      : pool_(&pool), offset_(offset), bytes_(bytes) {}

  PoolAllocator* pool_ = nullptr;
  uint64_t offset_ = 0;
  std::span<std::byte> bytes_;
};

// Pieces of any size in a span of memory, which it never touches: a peer may be reading it, and
// bookkeeping that peers can write could not be trusted. Takes the smallest free piece that fits
// and joins freed neighbours at once.
//
// Cost: O(log n) for an alignment up to kGranule. A larger one looks at a few of the smallest
// candidates, then at one that is large enough for any alignment; only if there is none, at the
// rest of the free pieces.
//
// Thread-safety: all methods may run at the same time.
class PoolAllocator {
 public:
  static constexpr size_t kGranule = 64;  // Sizes and addresses of pieces are multiples.
  static constexpr size_t kMaxAlignment = 2 << 20;

  struct Usage {
    uint64_t total = 0;
    uint64_t free = 0;
    uint64_t used = 0;          // Rounded to granules.
    uint64_t largest_free = 0;  // What one request can get now.
    uint64_t high_water = 0;    // The most that was ever used at a time.
    uint32_t pieces = 0;        // Handed out.
    uint32_t waiting = 0;       // Requests in line.
    // 0: all free memory is one piece. Near 1: it is crumbs.
    double fragmentation() const noexcept {
      return free == 0 ? 0.0 : 1.0 - static_cast<double>(largest_free) / static_cast<double>(free);
    }
  };

  // Errors: invalid_argument if `memory` holds no whole granule.
  static Result<std::unique_ptr<PoolAllocator>> create(std::span<std::byte> memory);
  PoolAllocator(const PoolAllocator&) = delete;
  PoolAllocator& operator=(const PoolAllocator&) = delete;

  // `alignment` is of the address: a power of two up to kMaxAlignment; less than kGranule means
  // kGranule. Waits in line up to the deadline. Errors: invalid_argument (0 bytes, alignment);
  // limit (too_large) at once if the empty pool could not hold it; no_space at the deadline, or at
  // once if it has passed already.
  Result<PoolBuffer> allocate(size_t bytes, const Deadline& deadline, size_t alignment = kGranule);
  // Errors: invalid_argument if no piece that is handed out starts there.
  Status free(uint64_t offset);

  Usage usage() const;

 private:
  struct Piece {
    uint64_t bytes = 0;
    bool used = false;
  };
  struct Fit {
    uint64_t piece_begin = 0;
    uint64_t begin = 0;  // Aligned, inside the piece.
  };
  struct Request {
    uint64_t bytes = 0;  // In whole granules.
    uint64_t alignment = 0;
  };
  using PieceMap = std::map<uint64_t, Piece>;  // By address, without gaps from begin_ to end_.

  PoolAllocator(std::span<std::byte> memory, uint64_t begin, uint64_t end);
  Result<Request> check(size_t bytes, size_t alignment) const;
  std::optional<Fit> find_fit(const Request& request) const SL_REQUIRES(mutex_);
  PoolBuffer take(const Fit& fit, const Request& request, size_t bytes) SL_REQUIRES(mutex_);
  void add_free(uint64_t begin, uint64_t bytes) SL_REQUIRES(mutex_);
  void join_free(PieceMap::iterator piece) SL_REQUIRES(mutex_);
  uint64_t largest_free() const SL_REQUIRES(mutex_);

  const std::span<std::byte> memory_;
  const uint64_t base_;   // Address of the memory.
  const uint64_t begin_;  // Addresses of its whole granules.
  const uint64_t end_;
  mutable Mutex mutex_;
  WaitLine line_ SL_GUARDED_BY(mutex_);
  PieceMap pieces_ SL_GUARDED_BY(mutex_);
  std::set<std::pair<uint64_t, uint64_t>> free_by_size_ SL_GUARDED_BY(mutex_);  // Bytes, address.
  uint64_t used_ SL_GUARDED_BY(mutex_) = 0;
  uint64_t high_water_ SL_GUARDED_BY(mutex_) = 0;
  uint32_t used_pieces_ SL_GUARDED_BY(mutex_) = 0;
};

}  // namespace stagelink::memory
