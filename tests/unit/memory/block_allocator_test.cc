#include "memory/block_allocator.h"

#include <algorithm>
#include <atomic>
#include <ctime>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"

namespace stagelink::memory {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kBlock = 128;

Deadline now() { return Deadline::in(Duration::zero()); }
Deadline a_minute() { return Deadline::in(seconds(60)); }

class BlockAllocatorTest : public testing::Test {
 protected:
  std::unique_ptr<BlockAllocator> make(uint32_t blocks) {
    memory_.resize(blocks * kBlock + kBlock / 2);  // Half a block more, which is not used.
    auto allocator = BlockAllocator::create(memory_, kBlock);
    if (!allocator.ok()) ADD_FAILURE() << allocator.status().to_string();
    return *std::move(allocator);
  }
  static void wait_for_line(const BlockAllocator& allocator, uint32_t length) {
    while (allocator.usage().waiting != length) std::this_thread::yield();
  }

  std::vector<std::byte> memory_;
};

TEST_F(BlockAllocatorTest, CutsMemoryIntoWholeBlocks) {
  auto allocator = make(10);
  EXPECT_EQ(allocator->usage().total, 10U);
  EXPECT_EQ(allocator->offset_of(9), 9 * kBlock);
  EXPECT_EQ(allocator->bytes_of(9).data(), memory_.data() + 9 * kBlock);
  EXPECT_EQ(allocator->bytes_of(9).size(), kBlock);
}

TEST_F(BlockAllocatorTest, MemoryWithoutAWholeBlockIsInvalidArgument) {
  std::vector<std::byte> memory(100);
  EXPECT_EQ(BlockAllocator::create(memory, 101).status().reason(), Reason::kInvalidArgument);
  EXPECT_EQ(BlockAllocator::create(memory, 0).status().reason(), Reason::kInvalidArgument);
  EXPECT_EQ(BlockAllocator::create({}, 1).status().reason(), Reason::kInvalidArgument);
  EXPECT_TRUE(BlockAllocator::create(memory, 100).ok());
}

TEST_F(BlockAllocatorTest, ZeroBlocksIsInvalidArgument) {
  auto allocator = make(4);
  EXPECT_EQ(allocator->allocate(0, now()).status().reason(), Reason::kInvalidArgument);
}

TEST_F(BlockAllocatorTest, MoreThanThereAreIsTooLargeAtOnce) {
  auto allocator = make(4);
  const Deadline deadline = a_minute();
  EXPECT_EQ(allocator->allocate(5, deadline).status().reason(), Reason::kTooLarge);
  EXPECT_FALSE(deadline.passed());
  EXPECT_TRUE(allocator->allocate(4, deadline).ok());
}

TEST_F(BlockAllocatorTest, HandsOutTheLowestBlocksInOrder) {
  auto allocator = make(8);
  auto all = allocator->allocate(8, now());
  ASSERT_TRUE(all.ok());
  std::vector<uint32_t> ids = all->detach();
  EXPECT_EQ(ids, (std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  const std::vector<uint32_t> back{6, 1, 3};
  ASSERT_TRUE(allocator->free(back).ok());
  auto again = allocator->allocate(2, now());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(std::vector<uint32_t>(again->ids().begin(), again->ids().end()),
            (std::vector<uint32_t>{1, 3}));
}

TEST_F(BlockAllocatorTest, AllOrNothing) {
  auto allocator = make(4);
  auto three = allocator->allocate(3, now());
  ASSERT_TRUE(three.ok());
  EXPECT_EQ(allocator->allocate(2, now()).status().reason(), Reason::kNoSpace);
  EXPECT_EQ(allocator->usage().free, 1U);
  EXPECT_TRUE(allocator->allocate(1, now()).ok());
}

TEST_F(BlockAllocatorTest, DestroyedHolderGivesBack) {
  auto allocator = make(4);
  {
    auto blocks = allocator->allocate(4, now());
    ASSERT_TRUE(blocks.ok());
    EXPECT_EQ(allocator->usage().free, 0U);
    Blocks moved = *std::move(blocks);
    Blocks assigned;
    assigned = std::move(moved);
    EXPECT_EQ(assigned.ids().size(), 4U);
    EXPECT_EQ(allocator->usage().free, 0U);
  }
  EXPECT_EQ(allocator->usage().free, 4U);
  EXPECT_EQ(allocator->usage().high_water, 4U);
}

TEST_F(BlockAllocatorTest, DetachedBlocksStayTaken) {
  auto allocator = make(4);
  std::vector<uint32_t> ids;
  {
    auto blocks = allocator->allocate(3, now());
    ASSERT_TRUE(blocks.ok());
    ids = blocks->detach();
  }
  EXPECT_EQ(allocator->usage().used, 3U);
  EXPECT_TRUE(allocator->free(ids).ok());
  EXPECT_EQ(allocator->usage().used, 0U);
}

TEST_F(BlockAllocatorTest, FreeingTwiceIsRefusedAsAWhole) {
  auto allocator = make(8);
  auto blocks = allocator->allocate(4, now());
  ASSERT_TRUE(blocks.ok());
  const std::vector<uint32_t> ids = blocks->detach();
  const std::vector<std::vector<uint32_t>> wrong = {
      {0, 1, 7}, {0, 1, 0}, {0, 8}, {0, ~uint32_t{0}}};
  for (const std::vector<uint32_t>& list : wrong) {
    const Status refused = allocator->free(list);
    EXPECT_EQ(refused.reason(), Reason::kInvalidArgument);
    EXPECT_NE(refused.message().find(std::to_string(list.back())), std::string_view::npos)
        << refused.to_string();
    EXPECT_EQ(allocator->usage().used, 4U);
  }
  EXPECT_TRUE(allocator->free(ids).ok());
  EXPECT_EQ(allocator->free(ids).reason(), Reason::kInvalidArgument);
  EXPECT_EQ(allocator->usage().free, 8U);
}

TEST_F(BlockAllocatorTest, WaitEndsAtTheDeadlineWithoutSpinning) {
  auto allocator = make(1);
  auto held = allocator->allocate(1, now());
  ASSERT_TRUE(held.ok());
  const auto cpu = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  };
  const Deadline deadline = Deadline::in(milliseconds(100));
  const auto cpu_before = cpu();
  const auto refused = allocator->allocate(1, deadline);
  EXPECT_LT(cpu() - cpu_before, milliseconds(20));
  EXPECT_EQ(refused.status().reason(), Reason::kNoSpace);
  EXPECT_TRUE(deadline.passed());
  EXPECT_EQ(allocator->usage().waiting, 0U);
}

TEST_F(BlockAllocatorTest, FreedBlocksGoToTheWaiter) {
  auto allocator = make(4);
  auto held = allocator->allocate(4, now());
  ASSERT_TRUE(held.ok());
  std::vector<uint32_t> got;
  std::thread waiter([&] {
    auto blocks = allocator->allocate(2, a_minute());
    if (blocks.ok()) got = blocks->detach();
  });
  wait_for_line(*allocator, 1);
  const std::vector<uint32_t> ids = held->detach();
  ASSERT_TRUE(allocator->free(std::span(ids).first(1)).ok());  // Not enough yet.
  ASSERT_TRUE(allocator->free(std::span(ids).subspan(1, 1)).ok());
  waiter.join();
  EXPECT_EQ(got, (std::vector<uint32_t>{0, 1}));
}

TEST_F(BlockAllocatorTest, LargeRequestIsNotStarvedBySmallOnesBehindIt) {
  auto allocator = make(4);
  auto held = allocator->allocate(4, now());
  ASSERT_TRUE(held.ok());
  Blocks large;
  std::thread first([&] { large = *allocator->allocate(3, a_minute()); });
  wait_for_line(*allocator, 1);
  Blocks small;
  std::thread second([&] { small = *allocator->allocate(1, a_minute()); });
  wait_for_line(*allocator, 2);
  const std::vector<uint32_t> ids = held->detach();
  ASSERT_TRUE(allocator->free(std::span(ids).first(2)).ok());
  // Two are free, and still nobody may pass the one that wants three.
  EXPECT_EQ(allocator->allocate(1, now()).status().reason(), Reason::kNoSpace);
  EXPECT_EQ(allocator->usage().free, 2U);
  ASSERT_TRUE(allocator->free(std::span(ids).subspan(2)).ok());
  first.join();
  second.join();
  EXPECT_EQ(std::vector<uint32_t>(large.ids().begin(), large.ids().end()),
            (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(small.ids().front(), 3U);
}

TEST_F(BlockAllocatorTest, RequestThatGivesUpLetsTheNextOneThrough) {
  auto allocator = make(4);
  auto held = allocator->allocate(3, now());
  ASSERT_TRUE(held.ok());
  Reason large = Reason::kOk;
  std::thread first(
      [&] { large = allocator->allocate(4, Deadline::in(milliseconds(50))).status().reason(); });
  wait_for_line(*allocator, 1);
  const auto small = allocator->allocate(1, a_minute());
  EXPECT_TRUE(small.ok());
  first.join();
  EXPECT_EQ(large, Reason::kNoSpace);
}

// Twenty requests of one eighth each, with nobody reading: eight succeed, the rest fail in time.
TEST_F(BlockAllocatorTest, FullPoolRefusesAndRecovers) {
  auto allocator = make(8);
  std::vector<Blocks> held;
  int refused = 0;
  for (int i = 0; i < 20; ++i) {
    const Deadline limit = Deadline::in(seconds(1));
    auto blocks = allocator->allocate(1, Deadline::in(milliseconds(10)));
    EXPECT_FALSE(limit.passed());
    if (blocks.ok()) {
      held.push_back(*std::move(blocks));
    } else {
      EXPECT_EQ(blocks.status().reason(), Reason::kNoSpace);
      ++refused;
    }
  }
  EXPECT_EQ(held.size(), 8U);
  EXPECT_EQ(refused, 12);
  held.resize(4);
  for (int i = 0; i < 4; ++i) {
    auto blocks = allocator->allocate(1, now());
    ASSERT_TRUE(blocks.ok());
    held.push_back(*std::move(blocks));
  }
  EXPECT_EQ(allocator->allocate(1, now()).status().reason(), Reason::kNoSpace);
}

TEST_F(BlockAllocatorTest, AgreesWithAModelUnderRandomUse) {
  constexpr uint64_t kSeed = 23;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  constexpr uint32_t kBlocks = 200;
  SplitMix64 random(kSeed);
  auto allocator = make(kBlocks);
  std::set<uint32_t> free;
  for (uint32_t i = 0; i < kBlocks; ++i) free.insert(i);
  std::vector<std::vector<uint32_t>> held;
  uint32_t high_water = 0;
  for (int step = 0; step < 20'000; ++step) {
    if (random.below(2) == 0) {
      const auto count = static_cast<uint32_t>(1 + random.below(30));
      auto blocks = allocator->allocate(count, now());
      ASSERT_EQ(blocks.ok(), count <= free.size());
      if (!blocks.ok()) continue;
      held.push_back(blocks->detach());
      for (const uint32_t id : held.back()) {
        ASSERT_EQ(id, *free.begin());
        free.erase(free.begin());
      }
    } else if (!held.empty()) {
      std::swap(held[random.below(held.size())], held.back());
      ASSERT_TRUE(allocator->free(held.back()).ok());
      free.insert(held.back().begin(), held.back().end());
      held.pop_back();
    }
    high_water = std::max(high_water, kBlocks - static_cast<uint32_t>(free.size()));
    const BlockAllocator::Usage usage = allocator->usage();
    ASSERT_EQ(usage.free, free.size());
    ASSERT_EQ(usage.used, kBlocks - free.size());
    ASSERT_EQ(usage.high_water, high_water);
  }
}

TEST_F(BlockAllocatorTest, ThreadsNeverHoldTheSameBlock) {
  constexpr uint32_t kBlocks = 16;
  auto allocator = make(kBlocks);
  std::vector<std::atomic<int>> owners(kBlocks);
  std::atomic<int> conflicts{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      SplitMix64 random(t);
      for (int i = 0; i < 500; ++i) {
        auto blocks =
            allocator->allocate(static_cast<uint32_t>(1 + random.below(kBlocks)), a_minute());
        if (!blocks.ok()) ++conflicts;
        for (const uint32_t id : blocks->ids()) conflicts += owners[id].fetch_add(1);
        for (const uint32_t id : blocks->ids()) owners[id].fetch_sub(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(conflicts.load(), 0);
  EXPECT_EQ(allocator->usage().free, kBlocks);
}

}  // namespace
}  // namespace stagelink::memory
