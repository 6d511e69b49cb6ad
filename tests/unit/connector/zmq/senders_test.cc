#include "connector/zmq/senders.h"

#include <atomic>
#include <cstdio>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "integration/support/eventually.h"
#include "unit/connector/zmq/zmq_test.h"

namespace stagelink::zmq {
namespace {

using stagelink::test::eventually;
using test::bytes_of;
using test::make_context;
using test::soon;
using test::text_of;
using namespace std::chrono_literals;

class ZmqSendersTest : public ::testing::Test {
 protected:
  void open(const SenderOptions& options = {}) {
    auto senders = Senders::create(context_, options);
    ASSERT_TRUE(senders.ok());
    senders_ = *std::move(senders);
  }
  // Of a context of its own, so that its port is free when it has gone.
  Router listen(uint16_t port = 0) {
    auto router = Router::bind(make_context(), {.port = port});
    if (!router.ok()) throw std::runtime_error(router.status().to_string());
    return *std::move(router);
  }
  const Endpoint& nobody() const { return dead_.endpoint(); }
  static std::string next(Router& router) {
    auto message = router.receive(soon());
    return message.ok() && message->has_value() ? text_of((*message)->back()) : "";
  }

  std::shared_ptr<Context> context_ = make_context();
  const test::DeadPort dead_;
  std::unique_ptr<Senders> senders_;
};

TEST_F(ZmqSendersTest, MessagesToOnePeerKeepTheirOrder) {
  open();
  Router router = listen();
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(senders_->send(router.endpoint(), bytes_of(fmt::format("{}", i)), 20s).ok());
  }
  for (int i = 0; i < 100; ++i) EXPECT_EQ(next(router), fmt::format("{}", i));
}

TEST_F(ZmqSendersTest, AConnectionThatStandsTakesTheMessageFromItsCaller) {
  open();
  Router router = listen();
  ASSERT_TRUE(senders_->send_and_wait(router.endpoint(), bytes_of("first"), 20s).ok());
  EXPECT_EQ(next(router), "first");
  // The thread may still be at the end of its round, so that a message goes to it now and then.
  std::atomic<bool> by_caller{false};
  EXPECT_TRUE(eventually([&] {
    const auto done = [&, caller = std::this_thread::get_id()](const Status& status) {
      if (status.ok() && std::this_thread::get_id() == caller) by_caller.store(true);
    };
    return senders_->send(router.endpoint(), bytes_of("next"), 20s, done).ok() &&
           next(router) == "next" && by_caller.load();
  }));
}

TEST_F(ZmqSendersTest, ManyThreadsSendEachMessageOnce) {
  open();
  Router router = listen();
  constexpr int kThreads = 4;
  constexpr int kEach = 200;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        EXPECT_TRUE(
            senders_->send(router.endpoint(), bytes_of(fmt::format("{} {}", t, i)), 20s).ok());
      }
    });
  }
  std::map<int, int> expected;  // The next message of each thread.
  for (int i = 0; i < kThreads * kEach; ++i) {
    int thread = -1;
    int number = -1;
    ASSERT_EQ(std::sscanf(next(router).c_str(), "%d %d", &thread, &number), 2);
    EXPECT_EQ(number, expected[thread]++) << "in order, none twice, none lost";
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ZmqSendersTest, ADeadPeerDelaysNobodyElse) {
  open();
  Router router = listen();
  const Endpoint& dead = nobody();
  std::atomic<bool> dead_answered{false};
  ASSERT_TRUE(senders_
                  ->send(dead, bytes_of("lost"), Deadline::kLongest,
                         [&](const Status&) { dead_answered.store(true); })
                  .ok());
  EXPECT_TRUE(senders_->send_and_wait(router.endpoint(), bytes_of("hello"), 20s).ok());
  EXPECT_EQ(next(router), "hello");
  EXPECT_FALSE(dead_answered.load());
  senders_->close();
  EXPECT_TRUE(dead_answered.load());
}

TEST_F(ZmqSendersTest, AMessageThatNobodyTakesFailsInTime) {
  open();
  EXPECT_EQ(senders_->send_and_wait(nobody(), bytes_of("lost"), 20ms).reason(), Reason::kTimedOut);
  EXPECT_EQ(senders_->failed(), 1U);
}

TEST_F(ZmqSendersTest, APeerThatCameBackIsReachedAgain) {
  open();
  std::optional<Router> router = listen();
  const Endpoint address = router->endpoint();
  ASSERT_TRUE(senders_->send_and_wait(address, bytes_of("to the first"), 20s).ok());
  EXPECT_EQ(next(*router), "to the first");
  router.reset();
  router = listen(address.port);
  // One that is sent into the connection that has just died may be lost; the next ones are not.
  std::string got;
  EXPECT_TRUE(eventually([&] {
    (void)senders_->send_and_wait(address, bytes_of("to the second"), 1s);
    auto message = router->receive(Deadline::in(100ms));
    if (message.ok() && message->has_value()) got = text_of((*message)->back());
    return !got.empty();
  }));
  EXPECT_EQ(got, "to the second");
}

TEST_F(ZmqSendersTest, AnIdlePeerMakesRoomForANewOne) {
  open({.max_peers = 2});
  Router a = listen();
  Router b = listen();
  Router c = listen();
  for (Router* const router : {&a, &b, &c, &a}) {
    ASSERT_TRUE(senders_->send_and_wait(router->endpoint(), bytes_of("hello"), 20s).ok());
    EXPECT_EQ(next(*router), "hello");
    EXPECT_LE(senders_->peers(), 2U);
  }
}

TEST_F(ZmqSendersTest, PeersThatAreWaitedForDoNotMakeRoom) {
  open({.max_peers = 1});
  ASSERT_TRUE(senders_->send(nobody(), bytes_of("waits"), Deadline::kLongest).ok());
  Router router = listen();
  EXPECT_EQ(senders_->send_and_wait(router.endpoint(), bytes_of("no room"), 20s).reason(),
            Reason::kTooManyPeers);
}

TEST_F(ZmqSendersTest, NoMoreMessagesAreQueuedThanThereIsRoomFor) {
  open({.max_queued = 2});
  const Endpoint& dead = nobody();
  EXPECT_TRUE(senders_->send(dead, bytes_of("1"), Deadline::kLongest).ok());
  EXPECT_TRUE(senders_->send(dead, bytes_of("2"), Deadline::kLongest).ok());
  EXPECT_EQ(senders_->send(dead, bytes_of("3"), Deadline::kLongest).reason(), Reason::kLimit);
}

TEST_F(ZmqSendersTest, ClosedSendersRefuse) {
  open();
  senders_->close();
  senders_->close();
  EXPECT_EQ(senders_->send(nobody(), bytes_of("late"), 1s).reason(), Reason::kClosed);
}

}  // namespace
}  // namespace stagelink::zmq
