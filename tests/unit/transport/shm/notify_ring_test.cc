#include "transport/shm/notify_ring.h"

#include <cstring>
#include <thread>

#include <gtest/gtest.h>

#include "base/random.h"
#include "unit/transport/shm/page_memory.h"
#include "wire/notify_record.h"

namespace stagelink::transport {
namespace {

std::vector<std::byte> payload_of(uint64_t number, size_t bytes) {
  std::vector<std::byte> payload(bytes);
  SplitMix64 random(number);
  for (std::byte& byte : payload) byte = static_cast<std::byte>(random.next());
  return payload;
}

class NotifyRingTest : public ::testing::Test {
 protected:
  std::vector<RingMessage> pop_all() {
    std::vector<RingMessage> out;
    EXPECT_TRUE(consumer_.pop(~size_t{0}, out).ok());
    return out;
  }
  void spoil_record(uint32_t payload_bytes) {
    std::memcpy(reinterpret_cast<std::byte*>(&page_.page()) + wire::kRingOffset, &payload_bytes,
                sizeof payload_bytes);
  }

  PageMemory page_;
  NotifyProducer producer_{page_.page()};
  NotifyConsumer consumer_{page_.page()};
};

TEST_F(NotifyRingTest, MessagesComeOutAsTheyWentIn) {
  EXPECT_TRUE(consumer_.empty());
  ASSERT_TRUE(producer_.push(Reason::kOk, payload_of(1, 100)));
  ASSERT_TRUE(producer_.push(Reason::kCancelled, {}));
  EXPECT_FALSE(consumer_.empty());
  const auto out = pop_all();
  ASSERT_EQ(out.size(), 2U);
  EXPECT_EQ(out[0].payload, payload_of(1, 100));
  EXPECT_EQ(out[0].outcome, Reason::kOk);
  EXPECT_TRUE(out[1].payload.empty());
  EXPECT_EQ(out[1].outcome, Reason::kCancelled);
  EXPECT_TRUE(consumer_.empty());
}

TEST_F(NotifyRingTest, PopTakesNoMoreThanAsked) {
  for (uint64_t i = 0; i < 5; ++i) ASSERT_TRUE(producer_.push(Reason::kOk, payload_of(i, 9)));
  std::vector<RingMessage> out;
  ASSERT_TRUE(consumer_.pop(2, out).ok());
  EXPECT_EQ(out.size(), 2U);
  EXPECT_EQ(pop_all().size(), 3U);
}

TEST_F(NotifyRingTest, FullRingTakesNothingAndLosesNothing) {
  constexpr size_t kRecords = wire::kRingBytes / 1024;
  for (uint64_t i = 0; i < kRecords; ++i) {
    ASSERT_TRUE(producer_.push(Reason::kOk, payload_of(i, 1024 - wire::kNotifyHeaderBytes)));
  }
  EXPECT_FALSE(producer_.push(Reason::kOk, {}));  // To the last byte.
  const auto out = pop_all();
  ASSERT_EQ(out.size(), kRecords);
  for (uint64_t i = 0; i < kRecords; ++i) {
    EXPECT_EQ(out[i].payload, payload_of(i, 1024 - wire::kNotifyHeaderBytes));
  }
  EXPECT_TRUE(producer_.push(Reason::kOk, {}));
}

TEST_F(NotifyRingTest, WrapsAroundAtEverySize) {
  SplitMix64 random(7);
  for (uint64_t i = 0; i < 5000; ++i) {
    const size_t bytes = random.below(kMaxNotifyBytes + 1);
    ASSERT_TRUE(producer_.push(Reason::kOk, payload_of(i, bytes)));
    const auto out = pop_all();
    ASSERT_EQ(out.size(), 1U);
    ASSERT_EQ(out[0].payload, payload_of(i, bytes));
  }
}

// One mapping, two threads, so that ThreadSanitizer sees both sides.
TEST_F(NotifyRingTest, TwoThreadsPassMessagesInOrder) {
  constexpr uint64_t kCount = 20'000;
  std::thread sender([&] {
    for (uint64_t i = 0; i < kCount; ++i) {
      const auto payload = payload_of(i, i % 600);
      while (!producer_.push(Reason::kOk, payload)) std::this_thread::yield();
    }
  });
  uint64_t next = 0;
  bool right = true;
  while (next < kCount && right) {
    std::vector<RingMessage> out;
    right = consumer_.pop(16, out).ok();
    for (const RingMessage& message : out) {
      right = right && message.payload == payload_of(next, next % 600);
      ++next;
    }
    if (out.empty()) std::this_thread::yield();
  }
  sender.join();
  EXPECT_TRUE(right) << "at message " << next;
}

TEST_F(NotifyRingTest, TailBeyondTheRingIsCorrupt) {
  for (const uint64_t tail : {uint64_t{wire::kRingBytes} + 8, ~uint64_t{0}, uint64_t{4}}) {
    page_.page().tail.store(tail);
    std::vector<RingMessage> out;
    EXPECT_EQ(consumer_.pop(1, out).reason(), Reason::kFrame) << tail;
    EXPECT_TRUE(out.empty());
  }
}

TEST_F(NotifyRingTest, LengthBeyondWhatWasSentIsCorrupt) {
  for (const uint32_t bytes : {uint32_t{17}, kMaxNotifyBytes + 1, ~uint32_t{0}}) {
    PageMemory page;
    NotifyProducer producer(page.page());
    NotifyConsumer consumer(page.page());
    ASSERT_TRUE(producer.push(Reason::kOk, payload_of(1, 16)));
    std::memcpy(reinterpret_cast<std::byte*>(&page.page()) + wire::kRingOffset, &bytes,
                sizeof bytes);
    std::vector<RingMessage> out;
    EXPECT_EQ(consumer.pop(1, out).reason(), Reason::kFrame) << bytes;
  }
}

TEST_F(NotifyRingTest, RandomRingsNeverCrashTheReader) {
  SplitMix64 random(11);
  for (int round = 0; round < 2000; ++round) {
    auto* const bytes = reinterpret_cast<std::byte*>(&page_.page()) + wire::kRingOffset;
    for (size_t i = 0; i < 256; ++i) bytes[i] = static_cast<std::byte>(random.next());
    if (round % 2 == 0) spoil_record(static_cast<uint32_t>(random.below(300)));
    NotifyConsumer consumer(page_.page());
    page_.page().tail.store(page_.page().head.load() + random.below(wire::kRingBytes + 100));
    std::vector<RingMessage> out;
    (void)consumer.pop(100, out);
    for (const RingMessage& message : out) ASSERT_LE(message.payload.size(), kMaxNotifyBytes);
    page_.page().head.store(0);
    page_.page().tail.store(0);
  }
}

TEST_F(NotifyRingTest, HostileHeadCannotMakeTheSenderOverrun) {
  for (const uint64_t head : {uint64_t{8}, uint64_t{1} << 63}) {
    page_.page().head.store(head);  // Ahead of what was ever sent.
    EXPECT_FALSE(producer_.push(Reason::kOk, payload_of(1, 16))) << head;
  }
  page_.page().head.store(0);
  EXPECT_TRUE(producer_.push(Reason::kOk, payload_of(1, 16)));
}

}  // namespace
}  // namespace stagelink::transport
