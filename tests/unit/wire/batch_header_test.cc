#include "wire/batch_header.h"

#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
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

BatchHeader list_of(std::vector<WireRange> ranges) {
  BatchHeader batch{.by_address = false,
                    .timeout_ms = 1,
                    .total_bytes = 0,
                    .regions = {{0, 1}, {1, 1}},
                    .ranges = std::move(ranges)};
  for (const WireRange& range : batch.ranges) batch.total_bytes += range.bytes;
  return batch;
}

// As a peer that knows groups is sent it.
BatchHeader grouped(BatchHeader batch) {
  EXPECT_TRUE(group_ranges(batch.ranges, batch.grouped));
  batch.ranges.clear();
  return batch;
}

std::vector<WireRange> ranges_of(const BatchHeader& batch) {
  GroupWalk walk;
  walk.begin(batch.grouped);
  std::vector<WireRange> ranges;
  for (size_t i = range_count(batch); i > 0; --i) ranges.push_back(walk.next());
  return ranges;
}

std::vector<WireRange> strided_blocks(uint64_t count, uint64_t bytes, uint64_t step) {
  std::vector<WireRange> ranges;
  for (uint64_t i = 0; i < count; ++i) ranges.push_back({0, i * step, bytes});
  return ranges;
}

std::vector<WireRange> scattered_blocks(uint64_t count, uint64_t bytes) {
  SplitMix64 random(7);
  std::vector<WireRange> ranges;
  for (uint64_t i = 0; i < count; ++i)
    ranges.push_back({0, random.below(4 * count) * bytes, bytes});
  return ranges;
}

const BatchHeader& grouped_sample() {
  static const BatchHeader sample = [] {
    auto ranges = strided_blocks(9, 256, 1024);
    for (const uint64_t place : {40, 3, 17}) ranges.push_back({1, 0x1000 + place * 256, 256});
    return grouped(list_of(std::move(ranges)));
  }();
  return sample;
}

// What a batch of 15,000 blocks of 4 KiB costs (T52): next to nothing if it is regular, and little
// more than their offsets if it is not.
TEST(BatchHeaderTest, ABatchCostsWhatItsShapeNeeds) {
  EXPECT_LE(encode(list_of(scattered_blocks(15000, 4096))).size(), 15000U * 40);
  EXPECT_LE(encode(grouped(list_of(scattered_blocks(15000, 4096)))).size(), 15000U * 4 + 200);
  EXPECT_LE(encode(grouped(list_of(strided_blocks(15000, 4096, 8192)))).size(), 4096U);
  EXPECT_LE(encode(list_of({{0, 0, 15000 * 4096}})).size(), 4096U);
}

TEST(BatchHeaderTest, GroupsHaveTheirGoldenBytes) {
  expect_golden("batch_grouped.bin", encode(grouped_sample()));
}

TEST(BatchHeaderTest, GroupsStandForTheSameRangesInTheSameOrder) {
  std::vector<std::vector<WireRange>> lists = {strided_blocks(1000, 64, 96),
                                               scattered_blocks(1000, 4096),
                                               strided_blocks(8, 64, 0),  // One range eight times.
                                               strided_blocks(1000, 64, -uint64_t{96})};
  lists.push_back(strided_blocks(100, 64, 96));
  for (const WireRange& range : scattered_blocks(100, 10)) lists.back().push_back(range);
  for (WireRange range : strided_blocks(100, 64, 96)) {
    range.region = 1;
    lists.back().push_back(range);
  }
  lists.push_back(scattered_blocks(200, 100));
  for (size_t i = 0; i < 200; i += 20) lists.back()[i].bytes = 7;  // Some of another size,
  lists.back()[50].offset += uint64_t{1} << 40;                    // and one far away.
  for (const auto& ranges : lists) {
    const BatchHeader batch = grouped(list_of(ranges));
    EXPECT_EQ(ranges_of(batch), ranges);
    const auto again = decode_batch_header(encode(batch));
    ASSERT_TRUE(again.ok()) << again.status().to_string();
    EXPECT_EQ(*again, batch);
    EXPECT_LT(encoded_bytes(batch), encoded_bytes(list_of(ranges)));
  }
}

TEST(BatchHeaderTest, WhatGroupsWouldNotShortenStaysAsItIs) {
  RangeGroups groups;
  EXPECT_FALSE(group_ranges({}, groups));
  EXPECT_FALSE(group_ranges(std::vector<WireRange>{{0, 5, 10}}, groups));
  std::vector<WireRange> all_different;
  for (uint64_t i = 0; i < 100; ++i) all_different.push_back({0, i * i * 1000, i});
  EXPECT_FALSE(group_ranges(all_different, groups));
  EXPECT_TRUE(group_ranges(strided_blocks(kMaxGroupedRanges, 8, 16), groups));
  EXPECT_FALSE(group_ranges(strided_blocks(kMaxGroupedRanges + 1, 8, 16), groups));
}

// Places reach 2 GiB of units in either direction.
TEST(BatchHeaderTest, PlacesTooFarAwayBeginAGroupOfTheirOwn) {
  constexpr uint64_t kFar = uint64_t{1} << 31;
  for (const uint64_t unit : {1, 4096}) {
    std::vector<WireRange> ranges = scattered_blocks(20, unit);
    for (WireRange& range : ranges) range.offset += kFar * unit;
    ranges[0].offset = kFar * unit;
    for (const uint64_t far : {2 * kFar - 1, 2 * kFar, uint64_t{0}}) {
      ranges[10].offset = far * unit;
      const BatchHeader batch = grouped(list_of(ranges));
      EXPECT_EQ(ranges_of(batch), ranges);
      EXPECT_EQ(batch.grouped.groups.size() > 1, far == 2 * kFar) << unit << " " << far;
    }
  }
}

template <typename T>
Status decode_grouped_with(size_t offset, T value) {
  auto bytes = encode(grouped_sample());
  place_at(bytes, offset, value);
  return decode_batch_header(bytes).status();
}

TEST(BatchHeaderTest, AWrongFieldOfAGroupIsNamed) {
  constexpr size_t kGroups = 24 + 32;  // Behind two regions.
  EXPECT_TRUE(names(decode_grouped_with(0, uint32_t{4}), "flags"));
  EXPECT_TRUE(names(decode_grouped_with(20, uint32_t{0}), "group_count"));
  EXPECT_TRUE(names(decode_grouped_with(20, ~uint32_t{0}), "groups"));
  EXPECT_TRUE(names(decode_grouped_with(kGroups, uint32_t{2}), "groups.region"));
  EXPECT_TRUE(names(decode_grouped_with(kGroups + 4, uint32_t{0}), "groups.count"));
  EXPECT_TRUE(names(decode_grouped_with(kGroups + 4, uint32_t{8}), "total_bytes"));
  EXPECT_TRUE(names(decode_grouped_with(kGroups + 4, uint32_t{kMaxGroupedRanges}), "groups.count"));
  EXPECT_TRUE(names(decode_grouped_with(kGroups + 4, ~uint32_t{0}), "groups.count"));
  EXPECT_TRUE(names(decode_grouped_with(kGroups + 16, ~uint64_t{0}), "groups.bytes"));
  EXPECT_TRUE(names(decode_grouped_with(kGroups + 36, uint32_t{1U << 31 | 4}), "groups.places"));
  expect_all_truncations_refused(encode(grouped_sample()), decode_batch_header);
  EXPECT_FALSE(decode_batch_header(with_extra_byte(encode(grouped_sample()))).ok());
}

TEST(BatchHeaderTest, GroupsStandForABoundedNumberOfRanges) {
  BatchHeader batch = list_of({});
  batch.grouped.groups = {{0, kMaxGroupedRanges - 1, false, 0, 0, 1}, {1, 1, false, 0, 0, 1}};
  EXPECT_TRUE(decode_batch_header(encode(batch)).ok());
  batch.grouped.groups.back().count = 2;
  EXPECT_TRUE(names(decode_batch_header(encode(batch)).status(), "groups.count"));
}

TEST(BatchHeaderTest, RefusesEveryTruncation) {
  expect_all_truncations_refused(encode(kSample), decode_batch_header);
}

TEST(BatchHeaderTest, RefusesTrailingBytes) {
  EXPECT_EQ(decode_batch_header(with_extra_byte(encode(kSample))).status().reason(),
            Reason::kFrame);
}

TEST(BatchHeaderTest, AWrongFieldIsNamed) {
  EXPECT_TRUE(names(decode_with(0, uint32_t{4}), "flags"));
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
  for (const BatchHeader& next : {kByAddress, grouped_sample(), kSample}) {
    ASSERT_TRUE(decode_batch_header_to(encode(next), batch).ok());
    EXPECT_EQ(batch, next);
  }
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
