#include "wire/frame.h"

#include <gtest/gtest.h>

#include "unit/wire/golden.h"

namespace stagelink::wire {
namespace {

const FrameHeader kSample{.type = FrameType::kRegion,
                          .flags = 0,
                          .payload_bytes = 0x1234,
                          .fd_count = 1,
                          .request_id = 0x1122334455667788};

Result<FrameHeader> decode(std::vector<std::byte> bytes) {
  return decode_frame_header(std::span(bytes).first<kFrameHeaderBytes>());
}

template <typename T>
Status decode_with(size_t offset, T value) {
  const auto raw = encode(kSample);
  std::vector<std::byte> bytes(raw.begin(), raw.end());
  place_at(bytes, offset, value);
  return decode(bytes).status();
}

TEST(FrameTest, HasItsGoldenBytes) { expect_golden("frame_header.bin", encode(kSample)); }

TEST(FrameTest, RoundTrips) {
  const auto raw = encode(kSample);
  const auto header = decode_frame_header(raw);
  ASSERT_TRUE(header.ok()) << header.status().to_string();
  EXPECT_EQ((*header).type, kSample.type);
  EXPECT_EQ((*header).payload_bytes, kSample.payload_bytes);
  EXPECT_EQ((*header).fd_count, kSample.fd_count);
  EXPECT_EQ((*header).request_id, kSample.request_id);
}

TEST(FrameTest, AWrongFieldIsNamed) {
  EXPECT_TRUE(names(decode_with(0, uint32_t{0x314b4c54}), "magic"));
  EXPECT_TRUE(names(decode_with(4, uint16_t{0}), "type"));
  EXPECT_TRUE(names(decode_with(4, uint16_t{20}), "type"));
  EXPECT_TRUE(names(decode_with(4, uint16_t{0xffff}), "type"));
  EXPECT_TRUE(names(decode_with(6, uint16_t{1}), "flags"));
  EXPECT_TRUE(names(decode_with(8, kMaxControlBytes + 1), "payload_bytes"));
  EXPECT_TRUE(names(decode_with(12, kMaxFds + 1), "fd_count"));
  EXPECT_EQ(decode_with(12, kMaxFds + 1).reason(), Reason::kFrame);
}

TEST(FrameTest, EachTypeHasItsBounds) {
  for (uint16_t type = 1; type <= 19; ++type) {
    FrameHeader header{.type = static_cast<FrameType>(type)};
    header.payload_bytes = max_payload_bytes(header.type);
    header.fd_count = max_fds(header.type);
    EXPECT_TRUE(decode_frame_header(encode(header)).ok()) << frame_name(header.type);
    FrameHeader longer = header;
    ++longer.payload_bytes;
    EXPECT_FALSE(decode_frame_header(encode(longer)).ok()) << frame_name(header.type);
    FrameHeader more_fds = header;
    ++more_fds.fd_count;
    EXPECT_FALSE(decode_frame_header(encode(more_fds)).ok()) << frame_name(header.type);
  }
}

}  // namespace
}  // namespace stagelink::wire
