#include "cli/bench/rig/work_unit.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <span>
#include <vector>

#include <gtest/gtest.h>

namespace stagelink::cli::bench {
namespace {

constexpr Shape kPages{.block_bytes = 4096, .blocks = 4096};

TEST(WorkUnitTest, SlotsAreBoundedByTheRegionAndByTheirOwnLimit) {
  EXPECT_EQ((Shape{.block_bytes = 64 << 10, .blocks = 1}).slots(), 16384U);
  EXPECT_EQ((Shape{.block_bytes = 256, .blocks = 1}).slots(), kMostSlots);
  EXPECT_EQ((Shape{.block_bytes = 256, .blocks = 1, .most_slots = 10}).slots(), 10U);
}

TEST(WorkUnitTest, ShapeMayUseAllSlotsAndNotOneMore) {
  EXPECT_TRUE(check_shape({.block_bytes = 64 << 10, .blocks = 16384}).ok());
  EXPECT_EQ(check_shape({.block_bytes = 64 << 10, .blocks = 16385}).code(), Code::kInvalidArgument);
  EXPECT_EQ(check_shape({.block_bytes = 64 << 10, .blocks = 0}).code(), Code::kInvalidArgument);
}

TEST(WorkUnitTest, BlockMustBeWholeWordsAndFitTheRegion) {
  EXPECT_TRUE(check_shape({.block_bytes = 8, .blocks = 1}).ok());
  EXPECT_FALSE(check_shape({.block_bytes = 12, .blocks = 1}).ok());
  EXPECT_FALSE(check_shape({.block_bytes = 0, .blocks = 1}).ok());
  EXPECT_TRUE(check_shape({.block_bytes = kRegionBytes, .blocks = 1}).ok());
  EXPECT_FALSE(check_shape({.block_bytes = kRegionBytes + 8, .blocks = 1}).ok());
}

TEST(WorkUnitTest, PicksAreDistinctSlotsInsideTheRegion) {
  const Picks picks = make_picks(kPages, 3);
  for (const auto& side : {picks.local, picks.remote}) {
    EXPECT_EQ(std::set<uint64_t>(side.begin(), side.end()).size(), kPages.blocks);
    for (const uint64_t offset : side) {
      EXPECT_EQ(offset % kPages.block_bytes, 0U);
      EXPECT_LE(offset + kPages.block_bytes, kRegionBytes);
    }
  }
  EXPECT_NE(picks.local, picks.remote);
}

TEST(WorkUnitTest, SeedAloneDecidesThePicks) {
  EXPECT_EQ(make_picks(kPages, 3).remote, make_picks(kPages, 3).remote);
  EXPECT_NE(make_picks(kPages, 3).remote, make_picks(kPages, 4).remote);
}

TEST(WorkUnitTest, AllSlotsAreDrawnWhenAllAreAskedFor) {
  std::vector<uint64_t> offsets =
      make_picks({.block_bytes = 8, .blocks = 16, .most_slots = 16}, 1).local;
  std::sort(offsets.begin(), offsets.end());
  for (size_t i = 0; i < offsets.size(); ++i) EXPECT_EQ(offsets[i], i * 8);
}

TEST(WorkUnitTest, ContentTellsPlaceSaltAndASingleByteApart) {
  std::vector<std::byte> memory(4096);
  fill_content(memory, 7);
  const auto piece = std::span(memory).subspan(1024, 256);
  EXPECT_TRUE(holds_content(piece, 1024, 7));
  EXPECT_FALSE(holds_content(piece, 1032, 7));
  EXPECT_FALSE(holds_content(piece, 1024, 8));
  memory[1279] ^= std::byte{1};
  EXPECT_FALSE(holds_content(piece, 1024, 7));
}

}  // namespace
}  // namespace stagelink::cli::bench
