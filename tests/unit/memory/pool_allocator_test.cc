#include "memory/pool_allocator.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"

namespace stagelink::memory {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Deadline now() { return Deadline::in(Duration::zero()); }
Deadline a_minute() { return Deadline::in(seconds(60)); }
uint64_t address_of(const std::byte* at) { return reinterpret_cast<uintptr_t>(at); }

class PoolAllocatorTest : public testing::Test {
 protected:
  // Of `bytes`, starting `shift` bytes behind a multiple of 4 KiB.
  std::unique_ptr<PoolAllocator> make(size_t bytes, size_t shift = 0) {
    storage_.resize(bytes + shift + 4096);
    const size_t head = (4096 - address_of(storage_.data()) % 4096) % 4096 + shift;
    memory_ = std::span(storage_).subspan(head, bytes);
    auto pool = PoolAllocator::create(memory_);
    if (!pool.ok()) ADD_FAILURE() << pool.status().to_string();
    return *std::move(pool);
  }
  static void wait_for_line(const PoolAllocator& pool, uint32_t length) {
    while (pool.usage().waiting != length) std::this_thread::yield();
  }

  std::vector<std::byte> storage_;
  std::span<std::byte> memory_;
};

TEST_F(PoolAllocatorTest, GivesExactlyTheBytesAskedForInsideThePool) {
  auto pool = make(8192);
  auto buffer = pool->allocate(100, now());
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(buffer->bytes().size(), 100U);
  EXPECT_EQ(buffer->bytes().data(), memory_.data() + buffer->offset());
  EXPECT_EQ(pool->usage().used, 128U);  // Two granules.
}

TEST_F(PoolAllocatorTest, ZeroBytesIsInvalidArgument) {
  auto pool = make(8192);
  EXPECT_EQ(pool->allocate(0, now()).status().reason(), Reason::kInvalidArgument);
  EXPECT_TRUE(pool->allocate(1, now()).ok());
}

TEST_F(PoolAllocatorTest, AlignmentHasBounds) {
  auto pool = make(8192);
  for (const size_t wrong : {size_t{0}, size_t{3}, size_t{96}, 2 * PoolAllocator::kMaxAlignment}) {
    EXPECT_EQ(pool->allocate(1, now(), wrong).status().reason(), Reason::kInvalidArgument) << wrong;
  }
  for (const size_t right : {size_t{1}, size_t{64}, size_t{4096}}) {
    auto buffer = pool->allocate(1, now(), right);
    ASSERT_TRUE(buffer.ok()) << right;
    EXPECT_EQ(address_of(buffer->bytes().data()) % std::max<size_t>(right, 64), 0U);
  }
}

TEST_F(PoolAllocatorTest, LargerThanThePoolIsTooLargeAtOnce) {
  auto pool = make(8192);
  const Deadline deadline = a_minute();
  EXPECT_EQ(pool->allocate(8193, deadline).status().reason(), Reason::kTooLarge);
  EXPECT_EQ(pool->allocate(~size_t{0}, deadline).status().reason(), Reason::kTooLarge);
  EXPECT_EQ(pool->allocate(~size_t{0} - 4095, deadline, 4096).status().reason(), Reason::kTooLarge);
  EXPECT_FALSE(deadline.passed());
  EXPECT_TRUE(pool->allocate(8192, deadline).ok());
}

TEST_F(PoolAllocatorTest, WhatNoPlaceCouldAlignIsTooLargeAtOnce) {
  auto pool = make(8192, 64);
  const Deadline deadline = a_minute();
  EXPECT_EQ(pool->allocate(4161, deadline, 4096).status().reason(), Reason::kTooLarge);
  EXPECT_TRUE(pool->allocate(4160, deadline, 4096).ok());
  EXPECT_EQ(pool->allocate(1, deadline, 2 << 20).status().reason(), Reason::kTooLarge);
}

TEST_F(PoolAllocatorTest, UnalignedMemoryLosesOnlyItsEdges) {
  auto pool = make(1000, 1);
  EXPECT_EQ(pool->usage().total, 896U);  // From 64 to 960.
  auto buffer = pool->allocate(896, now());
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(address_of(buffer->bytes().data()) % 64, 0U);
  EXPECT_EQ(buffer->offset(), 63U);
}

TEST_F(PoolAllocatorTest, MemoryWithoutAGranuleIsInvalidArgument) {
  make(4096);
  EXPECT_EQ(PoolAllocator::create({}).status().reason(), Reason::kInvalidArgument);
  EXPECT_EQ(PoolAllocator::create(memory_.first(63)).status().reason(), Reason::kInvalidArgument);
  EXPECT_EQ(PoolAllocator::create(memory_.subspan(1, 126)).status().reason(),
            Reason::kInvalidArgument);
  EXPECT_TRUE(PoolAllocator::create(memory_.subspan(1, 127)).ok());
}

TEST_F(PoolAllocatorTest, TakesTheSmallestPieceThatFits) {
  auto pool = make(4096);
  auto a = pool->allocate(512, now());
  auto b = pool->allocate(64, now());
  auto c = pool->allocate(256, now());
  auto d = pool->allocate(64, now());
  ASSERT_TRUE(a.ok() && b.ok() && c.ok() && d.ok());
  const uint64_t small_hole = c->offset();
  *a = PoolBuffer();
  *c = PoolBuffer();
  auto again = pool->allocate(200, now());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->offset(), small_hole);
}

TEST_F(PoolAllocatorTest, FreedNeighboursBecomeOnePiece) {
  auto pool = make(4096);
  std::vector<PoolBuffer> buffers;
  for (int i = 0; i < 4; ++i) buffers.push_back(*pool->allocate(1024, now()));
  buffers[0] = {};
  buffers[2] = {};
  EXPECT_EQ(pool->usage().largest_free, 1024U);
  EXPECT_DOUBLE_EQ(pool->usage().fragmentation(), 0.5);
  EXPECT_EQ(pool->allocate(2048, now()).status().reason(), Reason::kNoSpace);
  buffers[1] = {};
  EXPECT_EQ(pool->usage().largest_free, 3072U);
  EXPECT_DOUBLE_EQ(pool->usage().fragmentation(), 0.0);
  buffers[3] = {};
  EXPECT_EQ(pool->usage().largest_free, 4096U);
  EXPECT_EQ(pool->usage().pieces, 0U);
  EXPECT_EQ(pool->usage().high_water, 4096U);
}

TEST_F(PoolAllocatorTest, DetachedPieceIsFreedByOffsetOnce) {
  auto pool = make(4096);
  uint64_t offset = 0;
  {
    auto buffer = pool->allocate(100, now());
    ASSERT_TRUE(buffer.ok());
    offset = buffer->detach();
  }
  EXPECT_EQ(pool->usage().pieces, 1U);
  EXPECT_EQ(pool->free(offset + 64).reason(), Reason::kInvalidArgument);
  EXPECT_EQ(pool->free(4096).reason(), Reason::kInvalidArgument);
  EXPECT_EQ(pool->free(~uint64_t{0}).reason(), Reason::kInvalidArgument);
  EXPECT_TRUE(pool->free(offset).ok());
  EXPECT_EQ(pool->free(offset).reason(), Reason::kInvalidArgument);
  EXPECT_EQ(pool->usage().used, 0U);
}

TEST_F(PoolAllocatorTest, WaitEndsAtTheDeadline) {
  auto pool = make(4096);
  auto held = pool->allocate(4096, now());
  ASSERT_TRUE(held.ok());
  const Deadline deadline = Deadline::in(milliseconds(30));
  EXPECT_EQ(pool->allocate(64, deadline).status().reason(), Reason::kNoSpace);
  EXPECT_TRUE(deadline.passed());
  EXPECT_EQ(pool->usage().waiting, 0U);
}

TEST_F(PoolAllocatorTest, WaiterGetsWhatIsFreed) {
  auto pool = make(4096);
  auto first = pool->allocate(2048, now());
  auto second = pool->allocate(2048, now());
  ASSERT_TRUE(first.ok() && second.ok());
  std::atomic<bool> got{false};
  std::thread waiter([&] { got = pool->allocate(4096, a_minute()).ok(); });
  wait_for_line(*pool, 1);
  *first = PoolBuffer();
  // Half is free, but it belongs to the one in line.
  EXPECT_EQ(pool->allocate(64, now()).status().reason(), Reason::kNoSpace);
  *second = PoolBuffer();
  waiter.join();
  EXPECT_TRUE(got);
}

TEST_F(PoolAllocatorTest, AlignedRequestFindsTheOnlyPlaceThatFits) {
  auto pool = make(64 << 10);
  // Holes of 2 KiB and a granule between walls, each 128 bytes further from a multiple of 2 KiB:
  // one of them holds an aligned 2 KiB. They are more than the candidates that are looked at first.
  std::vector<PoolBuffer> holes;
  std::vector<PoolBuffer> walls;
  walls.push_back(*pool->allocate(64, now()));
  while (pool->usage().largest_free >= 2048 + 128) {
    holes.push_back(*pool->allocate(2048 + 64, now()));
    walls.push_back(*pool->allocate(64, now()));
  }
  walls.push_back(*pool->allocate(pool->usage().largest_free, now()));
  ASSERT_GT(holes.size(), 20U);
  std::vector<PoolBuffer> fitting;
  for (PoolBuffer& hole : holes) {
    const uint64_t begin = address_of(hole.bytes().data());
    const bool fits = (begin + 2047) / 2048 * 2048 - begin <= 64;
    if (fits) fitting.push_back(std::move(hole));
    hole = {};
  }
  ASSERT_EQ(fitting.size(), 1U);
  EXPECT_TRUE(pool->allocate(2048, now()).ok());
  EXPECT_EQ(pool->allocate(2048, now(), 2048).status().reason(), Reason::kNoSpace);
  fitting.clear();
  const auto found = pool->allocate(2048, now(), 2048);
  EXPECT_TRUE(found.ok()) << found.status().to_string();
}

// Holds what the pool must agree with: pieces by offset, and no more.
struct Model {
  std::map<uint64_t, uint64_t> pieces;  // Offset and rounded size.
  uint64_t total;

  uint64_t used() const {
    uint64_t sum = 0;
    for (const auto& [offset, bytes] : pieces) sum += bytes;
    return sum;
  }
  // The largest run of free bytes, and whether one holds `bytes` at the alignment.
  uint64_t largest() const {
    uint64_t at = 0;
    uint64_t best = 0;
    for (const auto& [offset, bytes] : pieces) {
      best = std::max(best, offset - at);
      at = offset + bytes;
    }
    return std::max(best, total - at);
  }
  bool fits(uint64_t base, uint64_t bytes, uint64_t alignment) const {
    const auto in = [&](uint64_t begin, uint64_t end) {
      const uint64_t aligned = (base + begin + alignment - 1) / alignment * alignment - base;
      return aligned + bytes <= end;
    };
    uint64_t at = 0;
    for (const auto& [offset, size] : pieces) {
      if (in(at, offset)) return true;
      at = offset + size;
    }
    return in(at, total);
  }
};

TEST_F(PoolAllocatorTest, AgreesWithAModelUnderRandomUse) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SplitMix64 random(seed);
    auto pool = make(256 << 10);
    const uint64_t base = address_of(memory_.data());
    Model model{{}, pool->usage().total};
    std::vector<uint64_t> offsets;
    uint64_t refused = 0;
    for (int step = 0; step < 6000; ++step) {
      if (random.below(100) < 55) {
        const uint64_t bytes =
            random.below(8) == 0 ? 1 + random.below(40'000) : 1 + random.below(3000);
        const uint64_t alignment = random.below(3) == 0 ? uint64_t{1} << random.below(13) : 64;
        const uint64_t rounded = (bytes + 63) / 64 * 64;
        const bool fits = model.fits(base, rounded, std::max<uint64_t>(alignment, 64));
        auto buffer = pool->allocate(bytes, now(), alignment);
        ASSERT_EQ(buffer.ok(), fits) << "step " << step << ": " << bytes << " at " << alignment;
        if (!buffer.ok()) {
          ++refused;
          continue;
        }
        ASSERT_EQ((base + buffer->offset()) % std::max<uint64_t>(alignment, 64), 0U);
        const uint64_t offset = buffer->detach();
        const auto behind = model.pieces.lower_bound(offset);
        ASSERT_TRUE(behind == model.pieces.end() || offset + rounded <= behind->first);
        ASSERT_TRUE(behind == model.pieces.begin() ||
                    std::prev(behind)->first + std::prev(behind)->second <= offset);
        model.pieces.emplace(offset, rounded);
        offsets.push_back(offset);
      } else if (!offsets.empty()) {
        std::swap(offsets[random.below(offsets.size())], offsets.back());
        ASSERT_TRUE(pool->free(offsets.back()).ok());
        model.pieces.erase(offsets.back());
        offsets.pop_back();
      }
      const PoolAllocator::Usage usage = pool->usage();
      ASSERT_EQ(usage.used, model.used());
      ASSERT_EQ(usage.free, model.total - model.used());
      ASSERT_EQ(usage.largest_free, model.largest()) << "step " << step;
      ASSERT_EQ(usage.pieces, model.pieces.size());
    }
    EXPECT_GT(refused, 10U);
    for (const uint64_t offset : offsets) ASSERT_TRUE(pool->free(offset).ok());
    EXPECT_EQ(pool->usage().largest_free, model.total);
  }
}

TEST_F(PoolAllocatorTest, ThreadsNeverShareBytes) {
  auto pool = make(16 << 10);
  std::atomic<int> conflicts{0};
  std::vector<std::thread> threads;
  for (int t = 1; t <= 6; ++t) {
    threads.emplace_back([&, t] {
      SplitMix64 random(static_cast<uint64_t>(t));
      for (int i = 0; i < 400; ++i) {
        auto buffer = pool->allocate(1 + random.below(8 << 10), a_minute());
        if (!buffer.ok()) {
          ++conflicts;
          continue;
        }
        const auto mark = static_cast<std::byte>(t);
        std::memset(buffer->bytes().data(), t, buffer->bytes().size());
        std::this_thread::yield();
        for (const std::byte byte : buffer->bytes()) conflicts += byte != mark;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(conflicts.load(), 0);
  EXPECT_EQ(pool->usage().largest_free, uint64_t{16} << 10);
}

}  // namespace
}  // namespace stagelink::memory
