#include "wire/notify_record.h"

#include <gtest/gtest.h>

#include "unit/wire/golden.h"

namespace stagelink::wire {
namespace {

std::vector<std::byte> sample() {
  const auto header = encode_notify_header(Reason::kPeerLost, 5);
  std::vector<std::byte> bytes(header.begin(), header.end());
  for (const char c : {'h', 'e', 'l', 'l', 'o'}) bytes.push_back(static_cast<std::byte>(c));
  return bytes;
}

TEST(NotifyRecordTest, HasItsGoldenBytes) { expect_golden("notify.bin", sample()); }

TEST(NotifyRecordTest, RoundTrips) {
  const auto bytes = sample();
  auto record = decode_notify(bytes);
  ASSERT_TRUE(record.ok()) << record.status().to_string();
  EXPECT_EQ(record->outcome, Reason::kPeerLost);
  EXPECT_EQ(record->payload.size(), 5U);
  EXPECT_EQ(record->payload.data(), bytes.data() + kNotifyHeaderBytes);
}

TEST(NotifyRecordTest, ReadsOneRecordFromTheFront) {
  auto bytes = sample();
  const auto second = sample();
  bytes.insert(bytes.end(), second.begin(), second.end());
  EXPECT_EQ(decode_notify(bytes)->payload.size(), 5U);
}

TEST(NotifyRecordTest, RefusesEveryTruncation) {
  expect_all_truncations_refused(sample(), decode_notify);
}

TEST(NotifyRecordTest, AWrongFieldIsNamed) {
  auto bytes = sample();
  place_at(bytes, 0, ~uint32_t{0});
  EXPECT_TRUE(names(decode_notify(bytes).status(), "payload"));
  bytes = sample();
  place_at(bytes, 4, uint16_t{0xff00});
  EXPECT_TRUE(names(decode_notify(bytes).status(), "outcome"));
  bytes = sample();
  place_at(bytes, 6, uint16_t{1});
  EXPECT_TRUE(names(decode_notify(bytes).status(), "reserved"));
}

TEST(NotifyAckTest, HasItsGoldenBytesAndRoundTrips) {
  const NotifyAck ack{0x1122334455667788};
  const auto bytes = encode(ack);
  expect_golden("notify_ack.bin", bytes);
  EXPECT_EQ(*decode_notify_ack(bytes), ack);
}

TEST(NotifyAckTest, RefusesWhatIsNoPlaceInARing) {
  const auto raw = encode(NotifyAck{64});
  std::vector<std::byte> bytes(raw.begin(), raw.end());
  expect_all_truncations_refused(bytes, decode_notify_ack);
  EXPECT_EQ(decode_notify_ack(with_extra_byte(bytes)).status().reason(), Reason::kFrame);
  place_at(bytes, 0, uint64_t{63});
  EXPECT_TRUE(names(decode_notify_ack(bytes).status(), "taken"));
}

TEST(NotifyAckTest, RingBytesAreHeaderAndPayloadPadded) {
  EXPECT_EQ(notify_ring_bytes(0), 8U);
  EXPECT_EQ(notify_ring_bytes(8), 16U);
  EXPECT_EQ(notify_ring_bytes(9), 24U);
}

}  // namespace
}  // namespace stagelink::wire
