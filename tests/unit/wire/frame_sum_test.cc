#include "wire/frame_sum.h"

#include <gtest/gtest.h>

#include "unit/wire/golden.h"

namespace stagelink::wire {
namespace {

RawHeader sealed_sample() {
  RawHeader header = encode(
      FrameHeader{.type = FrameType::kData, .payload_bytes = 5, .request_id = 0x1122334455667788});
  seal_header(header);
  return header;
}

const std::array<std::byte, 5> kPayload = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4},
                                           std::byte{5}};

std::vector<std::byte> sample_frame() {
  const RawHeader header = sealed_sample();
  std::vector<std::byte> frame(header.begin(), header.end());
  frame.insert(frame.end(), kPayload.begin(), kPayload.end());
  return frame;
}

TEST(FrameSumTest, HasItsGoldenBytes) {
  auto bytes = sample_frame();
  for (const Trailer& trailer : {sum_of(bytes), void_sum(sealed_sample())}) {
    bytes.insert(bytes.end(), trailer.begin(), trailer.end());
  }
  expect_golden("checked_frame.bin", bytes);
}

TEST(FrameSumTest, PiecesHaveTheSumOfTheWhole) {
  std::vector<std::byte> payload(5000);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i * 31 >> 3);
  const RawHeader header = sealed_sample();
  std::vector<std::byte> whole(header.begin(), header.end());
  whole.insert(whole.end(), payload.begin(), payload.end());
  FrameSum sum;
  for (int use = 0; use < 2; ++use) {  // It can be used again.
    for (const size_t step : {1UL, 7UL, 64UL, 1024UL, 5000UL}) {
      sum.begin(header);
      for (size_t at = 0; at < payload.size(); at += step) {
        sum.add(std::span(payload).subspan(at, std::min(step, payload.size() - at)));
      }
      EXPECT_EQ(sum.trailer(), sum_of(whole)) << step;
    }
  }
}

TEST(FrameSumTest, ASealedHeaderOpensToWhatItWas) {
  const RawHeader plain = encode(FrameHeader{.type = FrameType::kPing, .request_id = 9});
  RawHeader header = plain;
  seal_header(header);
  EXPECT_NE(header, plain);
  EXPECT_TRUE(open_header(header));
  EXPECT_EQ(header, plain);
  EXPECT_TRUE(decode_frame_header(header).ok());
}

TEST(FrameSumTest, EveryFlippedBitOfAHeaderIsSeen) {
  for (size_t bit = 0; bit < kFrameHeaderBytes * 8; ++bit) {
    RawHeader header = sealed_sample();
    header[bit / 8] ^= std::byte{1} << bit % 8;
    EXPECT_FALSE(open_header(header)) << bit;
  }
}

TEST(FrameSumTest, EveryFlippedBitOfAFrameChangesItsSum) {
  const auto frame = sample_frame();
  const Trailer sum = sum_of(frame);
  for (size_t bit = 0; bit < frame.size() * 8; ++bit) {
    auto other = frame;
    other[bit / 8] ^= std::byte{1} << bit % 8;
    EXPECT_NE(sum_of(other), sum) << bit;
  }
}

TEST(FrameSumTest, TheVoidSumIsNoSumOfAnyPayload) {
  const RawHeader header = sealed_sample();
  EXPECT_NE(void_sum(header), sum_of(header));
  EXPECT_NE(void_sum(header), sum_of(sample_frame()));
}

}  // namespace
}  // namespace stagelink::wire
