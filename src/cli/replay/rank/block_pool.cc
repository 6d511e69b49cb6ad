#include "cli/replay/rank/block_pool.h"

#include <cstdlib>
#include <utility>

namespace stagelink::cli::replay {

Result<BlockPool> BlockPool::create(std::span<std::byte> memory, uint64_t block_bytes) {
  SL_ASSIGN(auto allocator, memory::BlockAllocator::create(memory, block_bytes));
  return BlockPool(std::move(allocator));
}

BlockPool::BlockPool(std::unique_ptr<memory::BlockAllocator> allocator)
    : allocator_(std::move(allocator)), entries_(allocator_->usage().total) {
  index_.reserve(entries_.size());
}

std::optional<BlockLease> BlockPool::acquire(std::span<const BlockKey> keys) {
  BlockLease lease_of_keys;
  lease_of_keys.blocks.assign(keys.size(), kNone);
  // What is held is leased first, so that the misses do not evict it.
  for (uint32_t i = 0; i < keys.size(); ++i) {
    if (const auto found = index_.find(keys[i]); found != index_.end()) {
      lease_of_keys.blocks[i] = found->second;
      lease(found->second);
    } else {
      lease_of_keys.missing.push_back(i);
    }
  }
  if (lease_of_keys.missing.size() > capacity() - leased_) {
    for (const uint32_t block : lease_of_keys.blocks) {
      if (block != kNone) release({&block, 1});
    }
    return {};
  }
  const auto fresh = take(static_cast<uint32_t>(lease_of_keys.missing.size()));
  for (size_t i = 0; i < fresh.size(); ++i) {
    const uint32_t position = lease_of_keys.missing[i];
    entries_[fresh[i]].key = keys[position];
    lease(fresh[i]);
    lease_of_keys.blocks[position] = fresh[i];
  }
  return lease_of_keys;
}

void BlockPool::commit(uint32_t block) {
  Entry& entry = entries_[block];
  if (!entry.held) entry.held = index_.emplace(entry.key, block).second;
}

void BlockPool::forget(uint32_t block) {
  Entry& entry = entries_[block];
  if (!entry.held) return;
  index_.erase(entry.key);
  entry.held = false;
  if (entry.leases > 0) return;
  unlink(block);
  give_back(block);
}

void BlockPool::release(std::span<const uint32_t> blocks) {
  // The end of a prompt is useless without its beginning, so it is the first to be evicted.
  for (auto at = blocks.rbegin(); at != blocks.rend(); ++at) {
    const uint32_t block = *at;
    Entry& entry = entries_[block];
    if (--entry.leases > 0) continue;
    --leased_;
    if (entry.held) {
      push_newest(block);
    } else {
      give_back(block);
    }
  }
}

void BlockPool::lease(uint32_t block) {
  Entry& entry = entries_[block];
  if (entry.leases++ > 0) return;
  ++leased_;
  if (entry.held) unlink(block);
}

// The caller has seen that this many blocks are not leased.
std::vector<uint32_t> BlockPool::take(uint32_t count) {
  if (count == 0) return {};
  for (uint32_t free = allocator_->usage().free; free < count; ++free) {
    forget(oldest_);
    ++evictions_;
  }
  auto blocks = allocator_->allocate(count, Deadline::in(Duration::zero()));
  return (*blocks).detach();
}

void BlockPool::give_back(uint32_t block) {
  if (!allocator_->free({&block, 1}).ok()) std::abort();  // Released twice.
}

void BlockPool::push_newest(uint32_t block) {
  Entry& entry = entries_[block];
  entry.older = newest_;
  entry.newer = kNone;
  (newest_ == kNone ? oldest_ : entries_[newest_].newer) = block;
  newest_ = block;
}

void BlockPool::unlink(uint32_t block) {
  const Entry& entry = entries_[block];
  (entry.older == kNone ? oldest_ : entries_[entry.older].newer) = entry.newer;
  (entry.newer == kNone ? newest_ : entries_[entry.newer].older) = entry.older;
}

}  // namespace stagelink::cli::replay
