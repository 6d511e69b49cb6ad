#include "connector/encoder_cache/push/push_link.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "unit/connector/zmq/zmq_test.h"

namespace stagelink::encoder_cache {
namespace {

using zmq::test::soon;
using namespace std::chrono_literals;

// A producer's link to a consumer that answers only when it is told to.
class PushLinkTest : public ::testing::Test {
 protected:
  void queue(PushKind kind, uint64_t first, uint64_t count) {
    for (uint64_t id = first; id < first + count; ++id) link_.queue({"{}", id, kind});
  }
  // What goes out until there are `count`, in order.
  std::vector<uint64_t> sent(size_t count) {
    std::vector<uint64_t> ids;
    for (const Deadline end = soon(); ids.size() < count && !end.passed();) {
      EXPECT_TRUE(link_.send(ids).ok());
      zmq::PollItem item{.socket = &link_.socket(), .want_write = ids.size() < count};
      (void)zmq::poll(context_->library(), std::span(&item, 1), Deadline::in(10ms));
    }
    return ids;
  }
  void answer(uint64_t id) {
    auto asked = router_.receive(soon());
    ASSERT_TRUE(asked.ok() && asked->has_value());
    const auto text = encode_answer(id, encode_result(Completed{true, true}));
    const std::array<zmq::FrameSpan, 3> frames = {(*asked)->front(), zmq::FrameSpan(),
                                                  std::as_bytes(std::span(text))};
    ASSERT_TRUE(router_.send(frames, soon()).ok());
    zmq::PollItem item{.socket = &link_.socket(), .want_read = true};
    ASSERT_TRUE(zmq::poll(context_->library(), std::span(&item, 1), soon()).ok());
    const auto reply = link_.receive();
    ASSERT_TRUE(reply.has_value() && reply->ok());
    EXPECT_EQ((**reply).id, id);
  }

  const std::shared_ptr<zmq::Context> context_ = zmq::test::make_context();
  zmq::Router router_ = *zmq::Router::bind(context_, {});
  PushLink link_{*zmq::Dealer::connect(context_, router_.endpoint()), 20s};
};

TEST_F(PushLinkTest, EachKindHasItsOwnWindowAndNoneWaitsForAnother) {
  constexpr uint64_t kWindow = PushLink::kWindow;
  queue(PushKind::kReserve, 1000, kWindow + 1);
  queue(PushKind::kComplete, 2000, kWindow + 1);
  EXPECT_EQ(sent(2 * kWindow).size(), 2 * kWindow);
  EXPECT_FALSE(link_.may_send());
  EXPECT_TRUE(link_.is_held_up());
  queue(PushKind::kAtOnce, 3000, 2);
  EXPECT_EQ(sent(2), (std::vector<uint64_t>{3000, 3001}));

  answer(2000);
  EXPECT_EQ(sent(1), std::vector<uint64_t>{2000 + kWindow});
  EXPECT_FALSE(link_.may_send());
  EXPECT_FALSE(link_.is_empty());  // A reservation still waits.
}

TEST_F(PushLinkTest, WhatNobodyWaitsForMakesRoom) {
  queue(PushKind::kReserve, 1, PushLink::kWindow + 1);
  ASSERT_EQ(sent(PushLink::kWindow).size(), PushLink::kWindow);
  EXPECT_FALSE(link_.may_send());
  for (auto& ids : link_.unanswered()) ids.erase(7);
  EXPECT_EQ(sent(1), std::vector<uint64_t>{PushLink::kWindow + 1});
  EXPECT_TRUE(link_.is_empty());
}

TEST_F(PushLinkTest, AnswersOfNoIdTakeNoWindow) {
  for (size_t i = 0; i < 2 * PushLink::kWindow; ++i) link_.queue({"{}"});
  std::vector<uint64_t> ids;
  for (const Deadline end = soon(); !link_.is_empty() && !end.passed();) {
    ASSERT_TRUE(link_.send(ids).ok());
  }
  EXPECT_TRUE(link_.is_empty());
  EXPECT_TRUE(ids.empty());
}

}  // namespace
}  // namespace stagelink::encoder_cache
