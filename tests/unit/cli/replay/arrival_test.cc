#include "cli/replay/rank/arrival.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/replay/rank/checksum.h"
#include "cli/replay/rank/ranges.h"
#include "cli/replay/workload/block_content.h"

namespace stagelink::cli::replay {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ArrivalTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kBlocks = 40;
  ArrivalTest() {
    config_.layout = Layout{2, 2, 2, 64, 16, kBlocks};
    pool_.resize(config_.layout.pool_bytes());
    for (uint32_t block = 0; block < kBlocks; ++block) {
      const BlockKey key{block, 0};
      fill_block(config_.layout, pool_, key, block);
      blocks_.push_back({block, key, block, block_checksum(config_.layout, pool_, block)});
    }
  }
  void spoil(uint32_t block) { pool_[config_.layout.offset(3, block) + 5] ^= std::byte{4}; }
  ArrivalReport check() const { return check_arrived(config_, pool_, blocks_); }
  RankConfig config_;
  std::vector<std::byte> pool_;
  std::vector<ArrivedBlock> blocks_;
};

TEST_F(ArrivalTest, RightBlocksAreVerified) {
  const auto report = check();
  EXPECT_EQ(report.verified, kBlocks);
  EXPECT_THAT(report.wrong, IsEmpty());
  EXPECT_THAT(report.bad_checksums, IsEmpty());
}

TEST_F(ArrivalTest, AChecksumFindsAFlippedBitBeforeTheContentDoes) {
  spoil(7);
  const auto report = check();
  EXPECT_THAT(report.bad_checksums, ElementsAre(7));
  EXPECT_THAT(report.wrong, IsEmpty());
  EXPECT_EQ(report.verified, kBlocks - 1);
}

TEST_F(ArrivalTest, WithoutChecksumsTheContentFindsIt) {
  config_.checksum = false;
  spoil(7);
  const auto report = check();
  EXPECT_THAT(report.wrong, ElementsAre(7));
  EXPECT_EQ(report.first_wrong, "id 7 token 0 layer 1 part 1 head 0");
}

TEST_F(ArrivalTest, ASampleLooksAtEverySixteenthBlock) {
  config_.checksum = false;
  config_.verify = Verify::kSample;
  spoil(7);
  spoil(32);
  const auto report = check();
  EXPECT_THAT(report.wrong, ElementsAre(32));
  EXPECT_EQ(report.verified, 2U);
}

TEST_F(ArrivalTest, OffComparesNothing) {
  config_.checksum = false;
  config_.verify = Verify::kOff;
  spoil(0);
  EXPECT_EQ(check().verified, 0U);
  EXPECT_THAT(check().wrong, IsEmpty());
}

TEST(BlockRangesTest, EveryPieceOfEveryBlockIsARange) {
  const Layout layout{1, 2, 2, 64, 16, 10};
  const uint32_t here[] = {3, 4};
  const uint32_t there[] = {1, 0};
  const BlockRanges ranges(layout, 5, here, there);
  const uint64_t piece = layout.piece_bytes();
  EXPECT_THAT(ranges.list().local_offsets,
              ElementsAre(3 * piece, 4 * piece, 13 * piece, 14 * piece));
  EXPECT_THAT(ranges.list().remote_offsets, ElementsAre(piece, 0, 6 * piece, 5 * piece));
  EXPECT_EQ(ranges.bytes(), 2 * layout.block_bytes());
}

}  // namespace
}  // namespace stagelink::cli::replay
