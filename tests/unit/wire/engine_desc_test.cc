#include "wire/engine_desc.h"

#include <gtest/gtest.h>

#include "unit/wire/golden.h"

namespace stagelink::wire {
namespace {

const EngineDesc kSample{.version = {1, 1},
                         .instance = {0x0102030405060708, 0x1112131415161718},
                         .host = {0x4142434445464748, 0x5152535455565758},
                         .name = "prefill-0",
                         .socket_path = "/run/user/0/stagelink/4712.sock",
                         .addresses = {"10.0.0.7:5000", "[fe80::1]:5000", "node-7.example:5000"}};

TEST(EngineDescTest, HasItsGoldenBytes) { expect_golden("engine_desc_1_1.bin", encode(kSample)); }

TEST(EngineDescTest, RoundTrips) {
  auto desc = decode_engine_desc(encode(kSample));
  ASSERT_TRUE(desc.ok()) << desc.status().to_string();
  EXPECT_EQ(*desc, kSample);
}

TEST(EngineDescTest, RefusesEveryTruncation) {
  expect_all_truncations_refused(encode(kSample), decode_engine_desc);
}

TEST(EngineDescTest, RefusesTrailingBytes) {
  EXPECT_EQ(decode_engine_desc(with_extra_byte(encode(kSample))).status().reason(), Reason::kFrame);
}

TEST(EngineDescTest, FindsEveryFlippedBit) {
  const auto good = encode(kSample);
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    auto bytes = good;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    const bool in_minor = bit / 8 == 6 && bit % 8 == 1;  // What says 1.3 may speak with 1.2 too.
    EXPECT_EQ(decode_engine_desc(bytes).ok(), in_minor) << bit;
  }
}

TEST(EngineDescTest, AnotherMajorIsIncompatible) {
  auto bytes = encode(kSample);
  place_at(bytes, 4, uint16_t{2});
  EXPECT_EQ(decode_engine_desc(bytes).status().reason(), Reason::kVersion);
}

TEST(EngineDescTest, AddressesMustBeReachableOnes) {
  for (const char* bad : {"", "host", "host:", ":80", "host:0", "host:65536", "host:80x",
                          "0.0.0.0:80", "[::]:80", ":::80", "*:80", "host: 80"}) {
    EngineDesc desc = kSample;
    desc.addresses[1] = bad;
    EXPECT_TRUE(names(decode_engine_desc(encode(desc)).status(), "address")) << bad;
  }
}

TEST(EngineDescTest, HoldsAtMostSixteenAddresses) {
  EngineDesc desc = kSample;
  desc.addresses.assign(kMaxAddresses, std::string(255, 'h') + ":65535");
  EXPECT_EQ(*decode_engine_desc(encode(desc)), desc);
  desc.addresses.emplace_back("host:1");
  EXPECT_EQ(decode_engine_desc(encode(desc))->addresses.size(), kMaxAddresses);
}

TEST(EngineDescTest, RefusesAbsurdSizes) {
  const std::vector<std::byte> bytes(kMaxEngineDescBytes + 1);
  EXPECT_TRUE(names(decode_engine_desc(bytes).status(), "size"));
}

}  // namespace
}  // namespace stagelink::wire
