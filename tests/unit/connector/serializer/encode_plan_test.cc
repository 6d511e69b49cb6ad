#include "connector/serializer/encode_plan.h"

#include <cstring>
#include <numeric>

#include <gtest/gtest.h>

#include "unit/connector/serializer/text_sink.h"

namespace stagelink::serializer {
namespace {

std::vector<std::byte> written(const EncodePlan& plan) {
  std::vector<std::byte> out(plan.size());
  EXPECT_TRUE(plan.write(out).ok());
  return out;
}

std::vector<std::byte> finished(PlanBuilder& builder) {
  auto plan = std::move(builder).finish();
  EXPECT_TRUE(plan.ok());
  return written(*plan);
}

std::vector<std::byte> counted(size_t bytes) {
  std::vector<std::byte> out(bytes);
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(i * 7 + i / 251);
  return out;
}

struct Shaped {
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
};

Status add_tensor(PlanBuilder& builder, const void* first, const Shaped& shaped,
                  std::string_view dtype = "int16", uint64_t item = 2) {
  auto source = ArraySource::create(first, shaped.shape, shaped.strides, item);
  if (!source.ok()) return source.status();
  return builder.array({ArrayKind::kTensor, dtype, {}, shaped.shape, *std::move(source)});
}

TEST(EncodePlanTest, ATensorIsWrittenAsInTheWorkedExample) {
  const int16_t values[] = {1, 2, 3, 4};
  PlanBuilder builder(Wire::kCompat);
  ASSERT_TRUE(add_tensor(builder, values, {{2, 2}, {4, 2}}).ok());
  EXPECT_EQ(hex_of(finished(builder)),
            "84aa5f5f74656e736f725f5fc3a56474797065a5696e743136a57368617065920202a464617461c408"
            "0100020003000400");
}

TEST(EncodePlanTest, NumbersTakeTheSmallestWidth) {
  struct Case {
    int64_t value;
    const char* hex;
  };
  constexpr Case kCases[] = {{0, "00"},
                             {127, "7f"},
                             {128, "cc80"},
                             {255, "ccff"},
                             {256, "cd0100"},
                             {65535, "cdffff"},
                             {65536, "ce00010000"},
                             {4294967295, "ceffffffff"},
                             {4294967296, "cf0000000100000000"},
                             {-1, "ff"},
                             {-32, "e0"},
                             {-33, "d0df"},
                             {-128, "d080"},
                             {-129, "d1ff7f"},
                             {-32768, "d18000"},
                             {-32769, "d2ffff7fff"},
                             {-2147483648, "d280000000"},
                             {-2147483649, "d3ffffffff7fffffff"}};
  for (const Case& c : kCases) {
    PlanBuilder builder(Wire::kCompat);
    builder.integer(c.value);
    EXPECT_EQ(hex_of(finished(builder)), c.hex) << c.value;
  }
}

TEST(EncodePlanTest, AMapsHeadIsAsWideAsTheMapMightHaveBeen) {
  const auto head = [](uint64_t count, uint64_t widest) {
    PlanBuilder builder(Wire::kCompat);
    EXPECT_TRUE(builder.map(count, widest).ok());
    return hex_of(finished(builder));
  };
  EXPECT_EQ(head(2, 15), "82");
  EXPECT_EQ(head(2, 16), "de0002");
  EXPECT_EQ(head(2, 65535), "de0002");
  EXPECT_EQ(head(2, 65536), "df00000002");
}

TEST(EncodePlanTest, LongPartsAreWrittenBetweenTheirNeighbours) {
  for (const size_t size : {kInsertBytes - 1, kInsertBytes, size_t{70'000}}) {
    for (const Wire wire : {Wire::kCompat, Wire::kFast}) {
      const auto raw = counted(size);
      const std::string text(size, 'x');
      PlanBuilder builder(wire);
      ASSERT_TRUE(builder.list(4, ListKind::kList).ok());
      ASSERT_TRUE(builder.bytes(raw).ok());
      ASSERT_TRUE(builder.text(text).ok());
      ASSERT_TRUE(add_tensor(builder, raw.data(), {{static_cast<int64_t>(size / 2)}, {2}}).ok());
      builder.nil();
      EXPECT_EQ(read(finished(builder)),
                fmt::format("[bytes of {} text of {} tensor int16 [{}] of {} nil]", size, size,
                            size / 2, size / 2 * 2));
    }
  }
}

TEST(EncodePlanTest, TheFastFormAlignsEveryArrayAndFillsWithZeros) {
  const auto raw = counted(100);
  PlanBuilder builder(Wire::kFast, true);
  ASSERT_TRUE(builder.list(3, ListKind::kTuple).ok());
  ASSERT_TRUE(add_tensor(builder, raw.data(), {{3}, {1}}, "uint8", 1).ok());
  ASSERT_TRUE(add_tensor(builder, raw.data(), {{0, 128}, {128, 1}}, "uint8", 1).ok());
  ASSERT_TRUE(add_tensor(builder, raw.data(), {{100}, {1}}, "uint8", 1).ok());
  auto plan = std::move(builder).finish();
  ASSERT_TRUE(plan.ok());
  std::vector<std::byte> out((*plan).size() + 64, std::byte{0xee});
  const size_t shift = (64 - reinterpret_cast<uintptr_t>(out.data()) % 64) % 64;
  const auto frame = std::span(out).subspan(shift, (*plan).size());
  ASSERT_TRUE((*plan).write(frame).ok());
  TextSink sink;
  ASSERT_TRUE(check_sum(frame).ok());
  ASSERT_TRUE(decode_payload(frame, sink).ok());
  EXPECT_EQ(sink.out, "(tensor uint8 [3] 00070e tensor uint8 [0,128]  tensor uint8 [100] of 100)");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(sink.last_array.data()) % 64, 0u);
  EXPECT_EQ(std::memcmp(sink.last_array.data(), raw.data(), 100), 0);
  const auto before = frame.subspan(frame.size() - 161, 61);
  EXPECT_EQ(hex_of(before), std::string(122, '0'));
}

TEST(EncodePlanTest, TheFastFormKeepsItsLayout) {
  const int16_t values[] = {1, 2};
  PlanBuilder builder(Wire::kFast);
  ASSERT_TRUE(builder.map(1, 1).ok());
  ASSERT_TRUE(builder.text("t").ok());
  ASSERT_TRUE(add_tensor(builder, values, {{2}, {2}}).ok());
  EXPECT_EQ(hex_of(finished(builder)),
            "c1010000"
            "17000000"
            "4400000000000000"
            "0000000000000000"
            "81a174"
            "c71101"
            "00010500"
            "696e743136"
            "0200000000000000"
            "0000000000000000000000000000000000"
            "01000200");
}

TEST(EncodePlanTest, ADamagedByteIsFoundByTheSum) {
  const auto raw = counted(5000);
  PlanBuilder builder(Wire::kFast, true);
  ASSERT_TRUE(builder.bytes(raw).ok());
  auto frame = finished(builder);
  EXPECT_EQ(read(frame), "bytes of 5000");
  for (const size_t at :
       {size_t{4}, size_t{9}, size_t{17}, size_t{26}, size_t{60}, frame.size() - 1}) {
    frame[at] ^= std::byte{1};
    EXPECT_EQ(read(frame).substr(0, 18), "checksum (corrupt)") << at;
    frame[at] ^= std::byte{1};
  }
}

TEST(EncodePlanTest, AnotherVersionIsIncompatibleAndOtherFlagsAreCorrupt) {
  PlanBuilder builder(Wire::kFast);
  builder.nil();
  auto frame = finished(builder);
  EXPECT_EQ(read(frame), "nil");
  frame[1] = std::byte{2};
  EXPECT_EQ(read(frame),
            "version (incompatible): payload: the fast form has version 2, this reads 1");
  frame[1] = std::byte{1};
  frame[2] = std::byte{2};
  EXPECT_EQ(read(frame).substr(0, 15), "frame (corrupt)");
  frame[2] = std::byte{0};
  frame.push_back(std::byte{0});
  EXPECT_EQ(read(frame), "frame (corrupt): payload: 26 bytes, it says 25");
}

TEST(EncodePlanTest, PiecesAreFilledAsOneRunWhereverTheyAreCut) {
  const auto raw = counted(6000);
  for (const Wire wire : {Wire::kCompat, Wire::kFast}) {
    PlanBuilder builder(wire, true);
    ASSERT_TRUE(builder.list(2, ListKind::kList).ok());
    // A transposed array, which is gathered element by element.
    ASSERT_TRUE(add_tensor(builder, raw.data(), {{30, 50}, {2, 60}}).ok());
    ASSERT_TRUE(builder.bytes(std::span(raw).first(5000)).ok());
    auto plan = std::move(builder).finish();
    ASSERT_TRUE(plan.ok());
    const auto whole = written(*plan);
    for (const size_t cut : {size_t{1}, size_t{17}, size_t{23}, size_t{95}, size_t{1001}}) {
      std::vector<std::byte> out(whole.size());
      const std::vector<std::span<std::byte>> pieces = {std::span(out).first(cut),
                                                        {},
                                                        std::span(out).subspan(cut, 1),
                                                        std::span(out).subspan(cut + 1)};
      ASSERT_TRUE((*plan).write(pieces).ok());
      EXPECT_TRUE(out == whole) << cut;
    }
  }
}

TEST(EncodePlanTest, ADestinationOfAnotherSizeIsRefused) {
  PlanBuilder builder(Wire::kCompat);
  builder.nil();
  auto plan = std::move(builder).finish();
  ASSERT_TRUE(plan.ok());
  std::vector<std::byte> out(2);
  EXPECT_EQ((*plan).write(std::span(out).first(0)).reason(), Reason::kOutOfBounds);
  EXPECT_EQ((*plan).write(out).reason(), Reason::kOutOfBounds);
  EXPECT_TRUE((*plan).write(std::span(out).first(1)).ok());
}

// Every layout against the plain definition: one element after the other, by its strides.
TEST(ArraySourceTest, StridesOfAnyKindAreGatheredInOrder) {
  const auto raw = counted(20'000);
  struct Case {
    Shaped shaped;
    int64_t first;
    uint64_t item;
  };
  const Case kCases[] = {
      {{{}, {}}, 0, 4},                      // No axes.
      {{{5}, {-3}}, 40, 1},                  // Backwards.
      {{{4, 3}, {0, 2}}, 0, 2},              // Broadcast.
      {{{2, 3, 4}, {96, 32, 8}}, 0, 8},      // Dense.
      {{{2, 3, 4}, {8, 16, 48}}, 0, 8},      // The other way round.
      {{{3, 5, 7}, {1000, 70, 2}}, 0, 2},    // Rows apart.
      {{{3, 1, 64}, {4096, 5, 16}}, 0, 16},  // Runs of 1024 bytes.
      {{{6, 7}, {48, 6}}, 0, 3},             // Elements of an odd size.
      {{{2, 2, 2, 2}, {100, -50, 30, 4}}, 60, 4},
      {{{1, 1}, {99999, 99999}}, 0, 4},
  };
  for (const Case& c : kCases) {
    std::vector<std::byte> expected;
    std::vector<int64_t> at(c.shaped.shape.size());
    const int64_t count = std::accumulate(c.shaped.shape.begin(), c.shaped.shape.end(), int64_t{1},
                                          std::multiplies<>());
    for (int64_t i = 0; i < count; ++i) {
      int64_t rest = i;
      int64_t offset = c.first;
      for (size_t axis = at.size(); axis-- > 0;) {
        offset += rest % c.shaped.shape[axis] * c.shaped.strides[axis];
        rest /= c.shaped.shape[axis];
      }
      expected.insert(expected.end(), raw.begin() + offset,
                      raw.begin() + offset + static_cast<int64_t>(c.item));
    }
    auto source =
        ArraySource::create(raw.data() + c.first, c.shaped.shape, c.shaped.strides, c.item);
    ASSERT_TRUE(source.ok());
    ASSERT_EQ((*source).bytes(), expected.size());
    std::vector<std::byte> out(expected.size());
    const auto kernel = memory::pick_copy_kernel(0);
    std::span<std::byte> piece(out);
    PieceWriter writer({&piece, 1}, kernel);
    (*source).copy_to(writer);
    EXPECT_TRUE(out == expected) << fmt::format("{} {}", c.shaped.shape, c.shaped.strides);
  }
}

TEST(ArraySourceTest, AxesAndBytesAreBounded) {
  const std::vector<int64_t> most(kMaxRank, 1);
  const std::vector<int64_t> more(kMaxRank + 1, 1);
  EXPECT_TRUE(ArraySource::create(nullptr, most, most, 1).ok());
  EXPECT_EQ(ArraySource::create(nullptr, more, more, 1).status().reason(), Reason::kTooLarge);
  const std::vector<int64_t> negative = {2, -1};
  EXPECT_EQ(ArraySource::create(nullptr, negative, negative, 1).status().reason(),
            Reason::kInvalidArgument);
  const std::vector<int64_t> huge = {int64_t{1} << 31, int64_t{1} << 31};
  EXPECT_TRUE(ArraySource::create(nullptr, huge, huge, 1).ok());
  EXPECT_EQ(ArraySource::create(nullptr, huge, huge, 4).status().reason(), Reason::kTooLarge);
}

TEST(PlanBuilderTest, WhatMessagePackHasNoLengthForIsRefused) {
  // Memory that is never touched: only sizes count.
  const std::span<const std::byte> most(reinterpret_cast<const std::byte*>(64), UINT32_MAX);
  const std::span<const std::byte> more(most.data(), uint64_t{UINT32_MAX} + 1);
  PlanBuilder builder(Wire::kCompat);
  EXPECT_TRUE(builder.bytes(most).ok());
  EXPECT_EQ(builder.bytes(more).reason(), Reason::kTooLarge);
  const std::vector<int64_t> shape = {int64_t{UINT32_MAX} + 1};
  const std::vector<int64_t> strides = {1};
  EXPECT_EQ(add_tensor(builder, most.data(), {shape, strides}, "uint8", 1).reason(),
            Reason::kTooLarge);
  PlanBuilder fast(Wire::kFast);
  EXPECT_TRUE(fast.bytes(more).ok());
  EXPECT_TRUE(std::move(fast).finish().ok());
}

}  // namespace
}  // namespace stagelink::serializer
