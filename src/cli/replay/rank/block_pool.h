#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "cli/replay/workload/workload.h"
#include "memory/block_allocator.h"
#include "stagelink/result.h"

namespace stagelink::cli::replay {

// Blocks that one request uses: blocks[i] holds keys[i], or will hold it for i in `missing`.
struct BlockLease {
  std::vector<uint32_t> blocks;
  std::vector<uint32_t> missing;  // Positions, ascending.
};

// Which block of a pool holds which part of which prefix. Invariants:
//  1. A block is free, or held, or pending. Held: its bytes are those of its key, and find() may
//     give it to several leases. Pending: leased by the one request that fills it; no one else
//     finds it, so two requests that miss the same key fill two blocks.
//  2. A block with leases is never given to another key: whoever may still read it, or write into
//     it, holds a lease.
//  3. Held blocks without leases are in the LRU list; the oldest is evicted when nothing is free.
//
// Thread-safety: one thread.
class BlockPool {
 public:
  // As many blocks as `memory` holds. Errors: those of memory::BlockAllocator::create.
  static Result<BlockPool> create(std::span<std::byte> memory, uint64_t block_bytes);

  // A lease on every key, or nothing if too many blocks are leased: try again after a release.
  std::optional<BlockLease> acquire(std::span<const BlockKey> keys);
  // The block now holds what it was acquired for. If another block holds the same by now, this one
  // stays pending and is free after its release.
  void commit(uint32_t block);
  // The block's bytes are not to be trusted: nobody finds it any more.
  void forget(uint32_t block);
  void release(std::span<const uint32_t> blocks);

  uint32_t capacity() const noexcept { return static_cast<uint32_t>(entries_.size()); }
  uint32_t leased() const noexcept { return leased_; }
  uint32_t held() const noexcept { return static_cast<uint32_t>(index_.size()); }
  uint64_t evictions() const noexcept { return evictions_; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Entry {
    BlockKey key;
    uint32_t leases = 0;
    bool held = false;
    uint32_t older = kNone;  // In the LRU list.
    uint32_t newer = kNone;
  };

  explicit BlockPool(std::unique_ptr<memory::BlockAllocator> allocator);
  void lease(uint32_t block);
  std::vector<uint32_t> take(uint32_t count);
  void give_back(uint32_t block);
  void push_newest(uint32_t block);
  void unlink(uint32_t block);

  std::unique_ptr<memory::BlockAllocator> allocator_;
  std::vector<Entry> entries_;
  std::unordered_map<BlockKey, uint32_t, BlockKeyHash> index_;
  uint32_t oldest_ = kNone;
  uint32_t newest_ = kNone;
  uint32_t leased_ = 0;
  uint64_t evictions_ = 0;
};

}  // namespace stagelink::cli::replay
