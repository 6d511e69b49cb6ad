#include "cli/replay/rank/block_pool.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stagelink::cli::replay {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kBlockBytes = 64;

class BlockPoolTest : public ::testing::Test {
 protected:
  static std::vector<BlockKey> keys(std::initializer_list<uint64_t> ids) {
    std::vector<BlockKey> made;
    for (const uint64_t id : ids) made.push_back({id, 0});
    return made;
  }
  BlockPool make(uint32_t blocks) {
    memory_.resize(blocks * kBlockBytes);
    auto pool = BlockPool::create(memory_, kBlockBytes);
    EXPECT_TRUE(pool.ok());
    return *std::move(pool);
  }
  // Holds these keys, with no lease on them.
  static void hold(BlockPool& pool, std::initializer_list<uint64_t> ids) {
    const auto lease = pool.acquire(keys(ids));
    ASSERT_TRUE(lease.has_value());
    for (const uint32_t i : lease->missing) pool.commit(lease->blocks[i]);
    pool.release(lease->blocks);
  }
  std::vector<std::byte> memory_;
};

TEST_F(BlockPoolTest, WhatWasCommittedIsFoundAgain) {
  BlockPool pool = make(4);
  hold(pool, {1, 2});
  const auto lease = pool.acquire(keys({2, 3}));
  ASSERT_TRUE(lease.has_value());
  EXPECT_THAT(lease->missing, ElementsAre(1));
}

TEST_F(BlockPoolTest, APendingBlockIsFoundByNobodyElse) {
  BlockPool pool = make(4);
  const auto first = pool.acquire(keys({1}));
  const auto second = pool.acquire(keys({1}));
  ASSERT_TRUE(first && second);
  EXPECT_THAT(second->missing, ElementsAre(0));
  EXPECT_NE(first->blocks[0], second->blocks[0]);
  pool.commit(first->blocks[0]);
  pool.commit(second->blocks[0]);  // Too late: not needed.
  pool.release(first->blocks);
  pool.release(second->blocks);
  EXPECT_EQ(pool.held(), 1U);
  EXPECT_EQ(pool.leased(), 0U);
}

TEST_F(BlockPoolTest, ABlockThatWasNotCommittedIsFreeAfterItsRelease) {
  BlockPool pool = make(1);
  const auto lease = pool.acquire(keys({1}));
  ASSERT_TRUE(lease.has_value());
  pool.release(lease->blocks);
  EXPECT_EQ(pool.held(), 0U);
  EXPECT_TRUE(pool.acquire(keys({2})).has_value());
}

TEST_F(BlockPoolTest, TheLeastRecentlyUsedIsEvicted) {
  BlockPool pool = make(3);
  hold(pool, {1});
  hold(pool, {2});
  hold(pool, {3});
  hold(pool, {1});  // Used again.
  hold(pool, {4});
  EXPECT_EQ(pool.evictions(), 1U);
  EXPECT_THAT(pool.acquire(keys({1, 3, 4}))->missing, IsEmpty());
}

TEST_F(BlockPoolTest, TheEndOfAPromptIsEvictedBeforeItsBeginning) {
  BlockPool pool = make(3);
  hold(pool, {1, 2, 3});
  hold(pool, {4});
  EXPECT_THAT(pool.acquire(keys({1, 2}))->missing, IsEmpty());
}

TEST_F(BlockPoolTest, ALeasedBlockIsNeverEvicted) {
  BlockPool pool = make(3);
  hold(pool, {1, 2});
  const auto leased = pool.acquire(keys({1, 2}));
  ASSERT_TRUE(leased.has_value());
  EXPECT_FALSE(pool.acquire(keys({3, 4})).has_value());
  EXPECT_EQ(pool.leased(), 2U);
  ASSERT_TRUE(pool.acquire(keys({3})).has_value());
  EXPECT_EQ(pool.evictions(), 0U);
}

TEST_F(BlockPoolTest, ARefusedRequestLeavesEverythingAsItWas) {
  BlockPool pool = make(2);
  hold(pool, {1, 2});
  EXPECT_FALSE(pool.acquire(keys({1, 2, 3})).has_value());
  EXPECT_EQ(pool.leased(), 0U);
  EXPECT_EQ(pool.held(), 2U);
  EXPECT_THAT(pool.acquire(keys({1, 2}))->missing, IsEmpty());
}

TEST_F(BlockPoolTest, ARequestOfTheWholePoolFitsAndOneMoreDoesNot) {
  BlockPool pool = make(3);
  hold(pool, {1, 2});
  const auto all = pool.acquire(keys({3, 4, 5}));
  ASSERT_TRUE(all.has_value());
  pool.release(all->blocks);
  EXPECT_FALSE(pool.acquire(keys({6, 7, 8, 9})).has_value());
}

TEST_F(BlockPoolTest, TwoLeasesOnABlockBothHaveToEnd) {
  BlockPool pool = make(1);
  hold(pool, {1});
  const auto first = pool.acquire(keys({1}));
  const auto second = pool.acquire(keys({1}));
  pool.release(first->blocks);
  EXPECT_FALSE(pool.acquire(keys({2})).has_value());
  pool.release(second->blocks);
  EXPECT_TRUE(pool.acquire(keys({2})).has_value());
}

TEST_F(BlockPoolTest, AForgottenBlockIsNotFound) {
  BlockPool pool = make(2);
  hold(pool, {1});
  const auto lease = pool.acquire(keys({1}));
  pool.forget(lease->blocks[0]);
  pool.release(lease->blocks);
  EXPECT_EQ(pool.held(), 0U);
  EXPECT_TRUE(pool.acquire(keys({2, 3})).has_value());
}

TEST_F(BlockPoolTest, AKeyTwiceInOneRequestTakesTwoBlocks) {
  BlockPool pool = make(2);
  const auto lease = pool.acquire(keys({1, 1}));
  ASSERT_TRUE(lease.has_value());
  for (const uint32_t block : lease->blocks) pool.commit(block);
  pool.release(lease->blocks);
  EXPECT_EQ(pool.held(), 1U);
  EXPECT_TRUE(pool.acquire(keys({2, 3})).has_value());
}

}  // namespace
}  // namespace stagelink::cli::replay
