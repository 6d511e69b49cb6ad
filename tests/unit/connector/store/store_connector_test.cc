#include "connector/store/store_connector.h"

#include <cstring>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/deadline.h"

namespace stagelink::store_connector {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr ObjectName kName{"request", "0", "1"};

class StoreConnectorTest : public testing::Test {
 protected:
  StoreConnectorTest() {
    options_.store.arena.name = "connector-test-" + std::to_string(::getpid()) + "-" +
                                testing::UnitTest::GetInstance()->current_test_info()->name();
    options_.store.arena.name.resize(std::min<size_t>(options_.store.arena.name.size(), 64));
    options_.store.arena.capacity = 1 << 20;
    options_.store.arena.max_objects = 256;
    options_.put_timeout = milliseconds(20);
  }

  std::unique_ptr<StoreConnector> open() const {
    auto connector = StoreConnector::create(options_);
    if (!connector.ok()) throw std::runtime_error(connector.status().to_string());
    return *std::move(connector);
  }
  static Status put(StoreConnector& connector, const ObjectName& name, std::string_view text) {
    return connector.put(name, text.size(), [text](auto pieces) {
      std::memcpy(pieces[0].data(), text.data(), text.size());
      return Status();
    });
  }
  static std::string text_of(const Result<ObjectView>& view) {
    if (!view.ok()) return std::string(reason_name(view.status().reason()));
    const auto bytes = (*view).bytes();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  static void end(StoreConnector& connector, const ObjectName& name, const Result<ObjectView>& view,
                  const Status& decoded = {}) {
    connector.consumed(name, *view, decoded, milliseconds(1));
  }
  // Objects that the store has or holds for views.
  static uint64_t objects(StoreConnector& connector) {
    const auto usage = connector.store().usage();
    return usage.ok() ? (*usage).objects + (*usage).leased : 999;
  }

  ConnectorOptions options_;
};

TEST_F(StoreConnectorTest, AnObjectIsConsumedOnce) {
  const auto sender = open();
  const auto receiver = open();
  ASSERT_TRUE(put(*sender, kName, "hello").ok());
  {
    const auto view = receiver->get(kName, Duration::zero());
    EXPECT_EQ(text_of(view), "hello");
    end(*receiver, kName, view);
  }
  EXPECT_EQ(text_of(receiver->get(kName, Duration::zero())), "not_found");
  EXPECT_EQ(objects(*receiver), 0U);
  EXPECT_EQ(receiver->metrics().gets(Reason::kOk), 1U);
  EXPECT_EQ(receiver->metrics().gets(Reason::kNotFound), 1U);
  EXPECT_EQ(receiver->metrics().get_bytes(), 5U);
  EXPECT_EQ(sender->metrics().puts(Reason::kOk), 1U);
  EXPECT_EQ(sender->unconsumed(), 1U);
  EXPECT_EQ(sender->reap_consumed(), 1U);
  EXPECT_EQ(sender->unconsumed(), 0U);
}

TEST_F(StoreConnectorTest, EdgesDoNotMeetUnderOneId) {
  const auto connector = open();
  ASSERT_TRUE(put(*connector, {"r", "0", "1"}, "a").ok());
  ASSERT_TRUE(put(*connector, {"r", "1", "2"}, "b").ok());
  EXPECT_EQ(text_of(connector->get({"r", "1", "2"}, Duration::zero())), "b");
  EXPECT_EQ(text_of(connector->get({"r", "0", "1"}, Duration::zero())), "a");
  EXPECT_EQ(ObjectName({"r", "0", "1"}).key(), "r:0_1");
}

TEST_F(StoreConnectorTest, ConsumedObjectsStayIfTheyAreTo) {
  options_.delete_consumed = false;
  const auto connector = open();
  ASSERT_TRUE(put(*connector, kName, "x").ok());
  for (int round = 0; round < 2; ++round) {
    const auto view = connector->get(kName, Duration::zero());
    EXPECT_EQ(text_of(view), "x");
    end(*connector, kName, view);
  }
}

TEST_F(StoreConnectorTest, AReputDuringAGetIsNotDeleted) {
  const auto connector = open();
  ASSERT_TRUE(put(*connector, kName, "old").ok());
  const auto view = connector->get(kName, Duration::zero());
  ASSERT_TRUE(put(*connector, kName, "new").ok());
  end(*connector, kName, view);
  EXPECT_EQ(text_of(view), "old");  // The view keeps what it was given.
  EXPECT_EQ(text_of(connector->get(kName, Duration::zero())), "new");
}

TEST_F(StoreConnectorTest, WhatCannotBeDecodedIsDeletedAndCounted) {
  options_.delete_consumed = false;
  const auto connector = open();
  ASSERT_TRUE(put(*connector, kName, "x").ok());
  end(*connector, kName, connector->get(kName, Duration::zero()), Status(Reason::kCorrupt, "no"));
  EXPECT_EQ(text_of(connector->get(kName, Duration::zero())), "not_found");
  EXPECT_EQ(connector->metrics().gets(Reason::kCorrupt), 1U);
}

TEST_F(StoreConnectorTest, APutThatFailsLeavesNothing) {
  const auto connector = open();
  const uint64_t too_many = uint64_t{1} << 30;
  const auto nothing = [](auto) { return Status(); };
  EXPECT_EQ(connector->put(kName, too_many, nothing).code(), Code::kLimit);
  EXPECT_EQ(
      connector->put(kName, 4, [](auto) { return Status(Reason::kCorrupt, "cannot be written"); })
          .reason(),
      Reason::kCorrupt);
  EXPECT_EQ(connector->put({std::string(2000, 'k'), "0", "1"}, 1, nothing).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(objects(*connector), 0U);
  EXPECT_EQ(connector->unconsumed(), 0U);
  EXPECT_EQ(connector->metrics().puts(Reason::kCorrupt), 1U);
  EXPECT_EQ(connector->metrics().put_bytes(), 0U);
}

TEST_F(StoreConnectorTest, CleanupDeletesWhatNobodyHasGot) {
  const auto sender = open();
  ASSERT_TRUE(put(*sender, {"r", "0", "1"}, "a").ok());
  ASSERT_TRUE(put(*sender, {"r", "0", "2"}, "b").ok());
  ASSERT_TRUE(put(*sender, {"s", "0", "1"}, "c").ok());
  ASSERT_TRUE(put(*sender, {"t", "0", "1"}, "d").ok());
  sender->cleanup("r");
  EXPECT_EQ(objects(*sender), 2U);
  const auto other = open();  // Which has put nothing, and names what it means.
  other->cleanup("s");
  EXPECT_EQ(objects(*sender), 2U);
  other->cleanup("s:0_1");
  other->cleanup(ObjectName{"t", "0", "1"});
  EXPECT_EQ(objects(*sender), 0U);
}

TEST_F(StoreConnectorTest, AFullWindowMakesPutsWaitUntilTheirDeadline) {
  options_.window_size = 1;
  const auto sender = open();
  ASSERT_TRUE(put(*sender, {"a", "0", "1"}, "1").ok());
  const Status full = put(*sender, {"b", "0", "1"}, "2");
  EXPECT_EQ(full.reason(), Reason::kTimedOut);
  const auto view = sender->get({"a", "0", "1"}, Duration::zero());
  end(*sender, {"a", "0", "1"}, view);
  EXPECT_TRUE(put(*sender, {"b", "0", "1"}, "2").ok());
}

TEST_F(StoreConnectorTest, AGetWaitsForThePut) {
  const auto connector = open();
  std::string got;
  {
    std::jthread waits([&] { got = text_of(connector->get(kName, seconds(30))); });
    ASSERT_TRUE(put(*connector, kName, "late").ok());
  }
  EXPECT_EQ(got, "late");
  EXPECT_EQ(text_of(connector->get({"none", "0", "1"}, milliseconds(2))), "timed_out");
  EXPECT_EQ(connector->metrics().gets(Reason::kTimedOut), 1U);
}

TEST_F(StoreConnectorTest, CloseEndsWaitingGetsAndPuts) {
  options_.window_size = 1;
  options_.put_timeout = seconds(30);
  const auto connector = open();
  ASSERT_TRUE(put(*connector, {"a", "0", "1"}, "1").ok());
  Status put_status;
  std::string got;
  {
    std::jthread puts([&] { put_status = put(*connector, {"b", "0", "1"}, "2"); });
    std::jthread gets([&] { got = text_of(connector->get({"c", "0", "1"}, seconds(30))); });
    EXPECT_TRUE(connector->close().ok());
  }
  EXPECT_EQ(put_status.code(), Code::kInvalidState);
  EXPECT_EQ(got, "closed");
  EXPECT_EQ(connector->metrics().gets(Reason::kClosed), 1U);
  EXPECT_TRUE(connector->closed());
  EXPECT_TRUE(connector->close().ok());
  EXPECT_EQ(connector->reap_consumed(), 0U);
}

TEST_F(StoreConnectorTest, MetricsSayWhatCameOfEveryCall) {
  const auto connector = open();
  ASSERT_TRUE(put(*connector, kName, "x").ok());
  end(*connector, kName, connector->get(kName, Duration::zero()));
  (void)connector->get(kName, Duration::zero());
  const std::string text = connector->metrics_text();
  for (const char* line :
       {"stagelink_connector_puts_total{stage=\"-1\",backend=\"shm\",reason=\"ok\"} 1\n",
        "stagelink_connector_gets_total{stage=\"-1\",backend=\"shm\",reason=\"ok\"} 1\n",
        "stagelink_connector_gets_total{stage=\"-1\",backend=\"shm\",reason=\"not_found\"} 1\n",
        "phase=\"get_decode\"} 0.001\n", "phase=\"put_seal\",le=\"+Inf\"} 1\n",
        "stagelink_connector_get_bytes_total{stage=\"-1\",backend=\"shm\"} 1\n",
        "stagelink_store_put_bytes_total"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST_F(StoreConnectorTest, ManyThreadsPutAndGetAtOnce) {
  options_.put_timeout = seconds(30);
  options_.max_inflight = 2;
  const auto connector = open();
  constexpr int kEach = 50;
  std::atomic<int> right{0};
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (int at = 0; at < kEach; ++at) {
          const std::string id = std::to_string(thread) + "_" + std::to_string(at);
          if (thread % 2 == 0) {
            right += put(*connector, {id, "0", "1"}, id).ok() ? 1 : 0;
            continue;
          }
          const std::string other = std::to_string(thread - 1) + "_" + std::to_string(at);
          const auto view = connector->get({other, "0", "1"}, seconds(30));
          right += text_of(view) == other ? 1 : 0;
          if (view.ok()) end(*connector, {other, "0", "1"}, view);
        }
      });
    }
  }
  EXPECT_EQ(right.load(), 4 * kEach);
  EXPECT_EQ(objects(*connector), 0U);
}

}  // namespace
}  // namespace stagelink::store_connector
