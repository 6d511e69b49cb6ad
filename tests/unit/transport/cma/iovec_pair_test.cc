#include "transport/cma/iovec_pair.h"

#include <vector>

#include <gtest/gtest.h>

namespace stagelink::transport {
namespace {

// Addresses only; nothing is dereferenced.
CopyItem item(uint64_t local, uint64_t remote, uint64_t bytes) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return {reinterpret_cast<std::byte*>(local), remote, bytes, 0};
}

uint64_t total(const iovec* vectors, size_t count) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; ++i) bytes += vectors[i].iov_len;
  return bytes;
}

std::vector<CopyItem> scattered(size_t count) {
  std::vector<CopyItem> items;
  for (size_t i = 0; i < count; ++i) items.push_back(item(0x1000 + i * 64, 0x100000 + i * 64, 32));
  return items;
}

TEST(IovecPairTest, NeighboursAreMergedOnEachSideForItself) {
  IovecPair pair;
  std::vector<CopyItem> items;
  for (uint64_t i = 0; i < 5; ++i) items.push_back(item(0x1000 + i * 32, 0x9000 + i * 64, 32));
  EXPECT_EQ(pair.fill(items, 1024), 5U);
  EXPECT_EQ(pair.locals(), 1U);
  EXPECT_EQ(pair.local()->iov_len, 160U);
  EXPECT_EQ(pair.remotes(), 5U);
}

TEST(IovecPairTest, TakesAsManyAsFitAndNotOneMore) {
  const auto items = scattered(5);
  IovecPair pair;
  EXPECT_EQ(pair.fill(items, 4), 4U);
  EXPECT_EQ(pair.fill(items, 5), 5U);
  EXPECT_EQ(pair.fill(std::span(items).subspan(5), 4), 0U);
  EXPECT_TRUE(pair.empty());
}

TEST(IovecPairTest, ANeighbourOnOneSideNeedsRoomOnTheOther) {
  const std::vector<CopyItem> items = {item(0x1000, 0x9000, 32), item(0x1020, 0xa000, 32)};
  IovecPair pair;
  EXPECT_EQ(pair.fill(items, 1), 1U);
}

TEST(IovecPairTest, BothSidesHoldTheSameBytes) {
  const auto items = scattered(2000);
  IovecPair pair;
  EXPECT_EQ(pair.fill(items, IovecPair::kMost - 1), IovecPair::kMost - 1);
  uint64_t word = 0;
  pair.add(&word, 0x5000, sizeof word);
  EXPECT_EQ(pair.locals(), IovecPair::kMost);
  EXPECT_EQ(pair.remotes(), IovecPair::kMost);
  EXPECT_EQ(total(pair.local(), pair.locals()), 1023U * 32 + 8);
  EXPECT_EQ(total(pair.remote(), pair.remotes()), 1023U * 32 + 8);
}

// A short result may end anywhere, and at different places of the two vectors.
TEST(IovecPairTest, AdvanceGoesOnWhereTheKernelStopped) {
  std::vector<CopyItem> items;
  for (uint64_t i = 0; i < 5; ++i) items.push_back(item(0x1000 + i * 32, 0x9000 + i * 64, 32));
  for (uint64_t moved = 0; moved <= 160; ++moved) {
    IovecPair pair;
    (void)pair.fill(items, 1024);
    pair.advance(moved);
    ASSERT_EQ(pair.empty(), moved == 160);
    if (pair.empty()) continue;
    EXPECT_EQ(total(pair.local(), pair.locals()), 160 - moved);
    EXPECT_EQ(total(pair.remote(), pair.remotes()), 160 - moved);
    EXPECT_EQ(reinterpret_cast<uint64_t>(pair.local()->iov_base), 0x1000 + moved);
    EXPECT_EQ(reinterpret_cast<uint64_t>(pair.remote()->iov_base),
              0x9000 + moved / 32 * 64 + moved % 32);
  }
}

}  // namespace
}  // namespace stagelink::transport
