#include "wire/region_desc.h"

#include <limits>

#include <gtest/gtest.h>

#include "stagelink/region.h"
#include "unit/wire/golden.h"
#include "wire/checked_blob.h"
#include "wire/hello.h"

namespace stagelink::wire {
namespace {

const RegionDesc kSample{.instance = {0x0102030405060708, 0x1112131415161718},
                         .index = 42,
                         .generation = 7,
                         .address = 0x7f0000001000,
                         .bytes = 64 << 20,
                         .nonce = 0x6162636465666768,
                         .shareable = true,
                         .access = Access::kReadOnly};

// With the body changed and the check made good again.
template <typename T>
Status unpack_with(size_t offset, T value) {
  auto bytes = kSample.pack();
  std::vector<std::byte> body(bytes.begin() + kBlobHeadBytes, bytes.end());
  place_at(body, offset - kBlobHeadBytes, value);
  return RegionDesc::unpack(seal_blob(kRegionDescMagic, own_version(), body)).status();
}

TEST(RegionDescTest, HasItsGoldenBytes) { expect_golden("region_desc_1_2.bin", kSample.pack()); }

TEST(RegionDescTest, ReadsThatOfTheVersionBefore) {
  auto desc = RegionDesc::unpack(read_golden("region_desc_1_1.bin"));
  ASSERT_TRUE(desc.ok()) << desc.status().to_string();
  EXPECT_EQ(*desc, kSample);
}

TEST(RegionDescTest, PacksInto80Bytes) { EXPECT_EQ(kSample.pack().size(), kRegionDescBytes); }

TEST(RegionDescTest, RoundTrips) {
  RegionDesc desc = kSample;
  for (const bool shareable : {false, true}) {
    for (const Access access : {Access::kReadOnly, Access::kReadWrite}) {
      desc.shareable = shareable;
      desc.access = access;
      auto again = RegionDesc::unpack(desc.pack());
      ASSERT_TRUE(again.ok()) << again.status().to_string();
      EXPECT_EQ(*again, desc);
    }
  }
}

TEST(RegionDescTest, RefusesEveryTruncation) {
  expect_all_truncations_refused(kSample.pack(), RegionDesc::unpack);
}

TEST(RegionDescTest, RefusesTrailingBytes) {
  EXPECT_EQ(RegionDesc::unpack(with_extra_byte(kSample.pack())).status().reason(), Reason::kFrame);
}

TEST(RegionDescTest, FindsEveryFlippedBit) {
  const auto good = kSample.pack();
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    auto bytes = good;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    const bool in_minor = bit / 8 == 6 && bit % 8 == 0;  // 1.3 may speak with 1.2.
    EXPECT_EQ(RegionDesc::unpack(bytes).ok(), in_minor) << bit;
  }
}

TEST(RegionDescTest, UnknownVersionsAreIncompatibleAndNamed) {
  auto bytes = kSample.pack();
  place_at(bytes, 4, uint16_t{9});
  const Status status = RegionDesc::unpack(bytes).status();
  EXPECT_EQ(status.code(), Code::kIncompatible);
  EXPECT_TRUE(names(status, "9.2"));
}

TEST(RegionDescTest, AWrongFieldIsNamed) {
  EXPECT_TRUE(names(unpack_with(36, uint32_t{4}), "flags"));
  EXPECT_TRUE(names(unpack_with(72, uint64_t{1}), "reserved"));
  EXPECT_TRUE(unpack_with(48, std::numeric_limits<uint64_t>::max() - kSample.bytes).ok());
  EXPECT_TRUE(
      names(unpack_with(48, std::numeric_limits<uint64_t>::max() - kSample.bytes + 1), "bytes"));
}

}  // namespace
}  // namespace stagelink::wire
