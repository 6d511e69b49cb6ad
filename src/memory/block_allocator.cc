#include "memory/block_allocator.h"

#include <algorithm>

#include <fmt/format.h>

namespace stagelink::memory {

Blocks& Blocks::operator=(Blocks&& other) noexcept {
  Blocks old(std::move(other));
  std::swap(allocator_, old.allocator_);
  std::swap(ids_, old.ids_);
  return *this;
}

Blocks::~Blocks() {
  // Cannot fail: what this object holds was handed out and not given back.
  if (allocator_ != nullptr) (void)allocator_->free(ids_);
}

std::vector<uint32_t> Blocks::detach() noexcept {
  allocator_ = nullptr;
  return std::move(ids_);
}

Result<std::unique_ptr<BlockAllocator>> BlockAllocator::create(std::span<std::byte> memory,
                                                               size_t block_bytes) {
  constexpr size_t kMaxBlocks = size_t{1} << 31;
  const size_t total = block_bytes == 0 ? 0 : memory.size() / block_bytes;
  if (total == 0 || total > kMaxBlocks) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("{} bytes of memory cannot be cut into blocks of {} bytes: 1 to {} "
                              "blocks are possible",
                              memory.size(), block_bytes, kMaxBlocks));
  }
  return std::unique_ptr<BlockAllocator>(
      new BlockAllocator(memory, block_bytes, static_cast<uint32_t>(total)));
}

Result<Blocks> BlockAllocator::allocate(uint32_t count, const Deadline& deadline) {
  if (count == 0) return Status(Reason::kInvalidArgument, "allocating 0 blocks");
  if (count > total_) {
    return Status(Reason::kTooLarge,
                  fmt::format("{} blocks were asked for, there are {} in all", count, total_));
  }
  MutexLock lock(mutex_);
  if (line_.length() == 0 && count <= free_) return take(count);
  WaitLine::Place place(line_);
  do {
    if (place.is_first() && count <= free_) return take(count);
  } while (place.wait_until(mutex_, deadline));
  return Status(Reason::kNoSpace,
                fmt::format("{} blocks were asked for; {} of {} are free, and {} requests wait",
                            count, free_, total_, line_.length() - 1));
}

Blocks BlockAllocator::take(uint32_t count) {
  std::vector<uint32_t> ids(count);
  for (uint32_t& id : ids) {
    id = free_ids_.lowest();
    free_ids_.erase(id);
  }
  free_ -= count;
  high_water_ = std::max(high_water_, total_ - free_);
  return Blocks(*this, std::move(ids));
}

Status BlockAllocator::free(std::span<const uint32_t> ids) {
  MutexLock lock(mutex_);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < total_ && !free_ids_.contains(ids[i])) {
      free_ids_.insert(ids[i]);
      continue;
    }
    for (size_t k = 0; k < i; ++k) free_ids_.erase(ids[k]);  // All or none.
    return Status(Reason::kInvalidArgument,
                  ids[i] < total_ ? fmt::format("block {} is freed twice", ids[i])
                                  : fmt::format("block {} of {} is freed", ids[i], total_));
  }
  free_ += static_cast<uint32_t>(ids.size());
  line_.wake_first();
  return {};
}

BlockAllocator::Usage BlockAllocator::usage() const {
  MutexLock lock(mutex_);
  return {total_, free_, total_ - free_, high_water_, line_.length()};
}

}  // namespace stagelink::memory
