#include "wire/batch_header.h"

#include <limits>

#include <gtest/gtest.h>

#include "unit/wire/golden.h"

namespace stagelink::wire {
namespace {

const BatchHeader kSample{.by_address = false,
                          .timeout_ms = 30000,
                          .total_bytes = 4096 + 0 + 100,
                          .regions = {{3, 9}, {4, 11}},
                          .ranges = {{0, 0x10000, 4096}, {1, 8, 0}, {1, 5, 100}}};
const BatchHeader kByAddress{.by_address = true,
                             .timeout_ms = 1,
                             .total_bytes = 8,
                             .regions = {},
                             .ranges = {{0, 0x7f0000001000, 8}}};

template <typename T>
Status decode_with(size_t offset, T value) {
  auto bytes = encode(kSample);
  place_at(bytes, offset, value);
  return decode_batch_header(bytes).status();
}

TEST(BatchHeaderTest, HasItsGoldenBytes) {
  expect_golden("batch_by_region.bin", encode(kSample));
  expect_golden("batch_by_address.bin", encode(kByAddress));
}

TEST(BatchHeaderTest, RoundTrips) {
  for (const BatchHeader& batch : {kSample, kByAddress, BatchHeader{}}) {
    auto again = decode_batch_header(encode(batch));
    ASSERT_TRUE(again.ok()) << again.status().to_string();
    EXPECT_EQ(*again, batch);
    EXPECT_EQ(encode(batch).size(), batch_header_bytes(batch.regions.size(), batch.ranges.size()));
  }
}

// 15,000 scattered blocks, and the same bytes in one piece (T52).
TEST(BatchHeaderTest, ABlockCostsAtMostFortyBytesAndOnePieceNextToNothing) {
  BatchHeader batch{.by_address = false,
                    .timeout_ms = 1,
                    .total_bytes = 15000 * 4096,
                    .regions = {{0, 1}},
                    .ranges = {}};
  for (uint64_t i = 0; i < 15000; ++i) batch.ranges.push_back({0, 2 * i * 4096, 4096});
  EXPECT_LE(encode(batch).size(), 15000U * 40);
  batch.ranges = {{0, 0, 15000 * 4096}};
  EXPECT_LE(encode(batch).size(), 4096U);
}

TEST(BatchHeaderTest, RefusesEveryTruncation) {
  expect_all_truncations_refused(encode(kSample), decode_batch_header);
}

TEST(BatchHeaderTest, RefusesTrailingBytes) {
  EXPECT_EQ(decode_batch_header(with_extra_byte(encode(kSample))).status().reason(),
            Reason::kFrame);
}

TEST(BatchHeaderTest, AWrongFieldIsNamed) {
  EXPECT_TRUE(names(decode_with(0, uint32_t{2}), "flags"));
  EXPECT_TRUE(names(decode_with(0, uint32_t{1}), "region_count"));  // By address, with regions.
  EXPECT_TRUE(names(decode_with(8, uint64_t{4197}), "total_bytes"));
  EXPECT_TRUE(names(decode_with(16, ~uint32_t{0}), "regions"));
  EXPECT_TRUE(names(decode_with(20, ~uint32_t{0}), "ranges"));
  EXPECT_TRUE(names(decode_with(28, uint32_t{1}), "regions.reserved"));
  EXPECT_TRUE(names(decode_with(24 + 32 + 20, uint32_t{1}), "ranges.reserved"));
}

TEST(BatchHeaderTest, RangesMayOnlyNameListedRegions) {
  EXPECT_TRUE(decode_with(24 + 32 + 24 + 16, uint32_t{0}).ok());
  EXPECT_TRUE(names(decode_with(24 + 32 + 24 + 16, uint32_t{2}), "ranges.region"));
  auto bytes = encode(kByAddress);
  place_at(bytes, 24 + 16, uint32_t{1});
  EXPECT_TRUE(names(decode_batch_header(bytes).status(), "ranges.region"));
}

TEST(BatchHeaderTest, SizesThatOverflowTheirSumAreRefused) {
  BatchHeader batch = kSample;
  batch.ranges = {{0, 0, std::numeric_limits<uint64_t>::max()}, {0, 0, 1}};
  batch.total_bytes = 0;
  EXPECT_TRUE(names(decode_batch_header(encode(batch)).status(), "ranges.bytes"));
  batch.ranges[1].bytes = 0;
  batch.total_bytes = std::numeric_limits<uint64_t>::max();
  EXPECT_TRUE(decode_batch_header(encode(batch)).ok());
}

TEST(BatchHeaderTest, DecodingIntoAUsedHeaderLeavesNothingOfTheOldOne) {
  BatchHeader batch = kSample;
  ASSERT_TRUE(decode_batch_header_to(encode(kByAddress), batch).ok());
  EXPECT_EQ(batch, kByAddress);
}

TEST(RegionRefTest, HasItsGoldenBytesAndRoundTrips) {
  const RegionRef ref{42, 0x1122334455667788};
  expect_golden("region_ref.bin", encode(ref));
  EXPECT_EQ(*decode_region_ref(encode(ref)), ref);
}

TEST(RegionRefTest, RefusesBadBytes) {
  const auto bytes = encode(RegionRef{1, 2});
  expect_all_truncations_refused(bytes, decode_region_ref);
  EXPECT_EQ(decode_region_ref(with_extra_byte(bytes)).status().reason(), Reason::kFrame);
  auto reserved = bytes;
  place_at(reserved, 4, uint32_t{1});
  EXPECT_TRUE(names(decode_region_ref(reserved).status(), "reserved"));
}

}  // namespace
}  // namespace stagelink::wire
