#include "connector/pull/memory/pool.h"

#include <utility>

namespace stagelink::pull {
namespace {

constexpr Duration kPoolTick = std::chrono::milliseconds(100);
constexpr uint64_t kPageBytes = 4096;

}  // namespace

Result<std::shared_ptr<Pool>> Pool::create(std::span<std::byte> memory,
                                           std::shared_ptr<const void> hold) {
  SL_ASSIGN(auto allocator, memory::PoolAllocator::create(memory));
  return std::shared_ptr<Pool>(new Pool(memory, std::move(hold), std::move(allocator)));
}

Pool::Pool(std::span<std::byte> memory, std::shared_ptr<const void> hold,
           std::unique_ptr<memory::PoolAllocator> allocator) noexcept
    : memory_(memory), hold_(std::move(hold)), allocator_(std::move(allocator)) {}

Result<Piece> Pool::allocate(uint64_t bytes, const Deadline& deadline, const Stopped& stopped) {
  const size_t alignment = bytes >= kPageBytes ? kPageBytes : memory::PoolAllocator::kGranule;
  while (true) {
    const Deadline tick = Deadline::earlier(deadline, Deadline::in(kPoolTick));
    auto buffer = allocator_->allocate(bytes, tick, alignment);
    if (buffer.ok()) return piece_of(*std::move(buffer));
    if (buffer.status().reason() != Reason::kNoSpace || deadline.passed()) return buffer.status();
    SL_TRY(stopped());
  }
}

Piece Pool::piece_of(memory::PoolBuffer buffer) {
  const std::span<std::byte> bytes = buffer.bytes();
  return Piece(std::make_shared<const PoolMemory>(shared_from_this(), std::move(buffer)), bytes);
}

bool Pool::contains(std::span<const std::byte> bytes) const noexcept {
  const auto begin = reinterpret_cast<uintptr_t>(memory_.data());
  const auto at = reinterpret_cast<uintptr_t>(bytes.data());
  return at >= begin && at - begin <= memory_.size() &&
         bytes.size() <= memory_.size() - (at - begin);
}

}  // namespace stagelink::pull
