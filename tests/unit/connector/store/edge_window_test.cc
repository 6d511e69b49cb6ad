#include "connector/store/edge_window.h"

#include <set>
#include <thread>

#include <gtest/gtest.h>

namespace stagelink::store_connector {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A store that only knows which keys it has.
class Keys {
 public:
  EdgeWindow::StillThere still_there() {
    return [this](const std::string& key) {
      const MutexLock lock(mutex_);
      ++asked_;
      return keys_.contains(key);
    };
  }
  void add(const std::string& key) {
    const MutexLock lock(mutex_);
    keys_.insert(key);
  }
  void remove(const std::string& key) {
    const MutexLock lock(mutex_);
    keys_.erase(key);
  }
  int asked() {
    const MutexLock lock(mutex_);
    return asked_;
  }

 private:
  Mutex mutex_;
  std::set<std::string> keys_ SL_GUARDED_BY(mutex_);
  int asked_ SL_GUARDED_BY(mutex_) = 0;
};

class EdgeWindowTest : public testing::Test {
 protected:
  static Status enter(EdgeWindow& window, std::string_view edge = "0->1") {
    return window.enter(edge, Deadline::in(milliseconds(5)));
  }
  void put(EdgeWindow& window, const std::string& key, std::string_view id = "r",
           std::string_view edge = "0->1") {
    const Status status = enter(window, edge);
    ASSERT_TRUE(status.ok()) << status.to_string();
    keys_.add(key);
    window.leave(edge, id, key, true);
  }
  Keys keys_;
};

TEST_F(EdgeWindowTest, WithoutBoundsNothingWaitsAndTheStoreIsNotAsked) {
  EdgeWindow window({}, keys_.still_there());
  for (int at = 0; at < 100; ++at) put(window, std::to_string(at));
  EXPECT_EQ(window.size(), 100U);
  EXPECT_EQ(keys_.asked(), 0);
}

TEST_F(EdgeWindowTest, AFullWindowOpensWhenAnObjectIsConsumed) {
  EdgeWindow window({2, -1}, keys_.still_there());
  put(window, "a");
  put(window, "b");
  const Status full = enter(window);
  EXPECT_EQ(full.reason(), Reason::kTimedOut);
  EXPECT_NE(full.message().find("2 objects of edge 0->1 are not consumed (window_size)"),
            std::string_view::npos);
  put(window, "c", "r", "0->2");  // Another edge has a window of its own.
  keys_.remove("a");
  EXPECT_TRUE(enter(window).ok());
}

TEST_F(EdgeWindowTest, AWaitingPutGoesOnWhenAnObjectIsConsumed) {
  EdgeWindow window({1, -1}, keys_.still_there());
  put(window, "a");
  Status status;
  {
    std::jthread waits([&] { status = window.enter("0->1", Deadline::in(seconds(30))); });
    while (keys_.asked() < 2) std::this_thread::yield();
    keys_.remove("a");
  }
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST_F(EdgeWindowTest, PutsUnderWayAreBounded) {
  EdgeWindow window({-1, 2}, keys_.still_there());
  EXPECT_TRUE(enter(window).ok());
  EXPECT_TRUE(enter(window).ok());
  const Status full = enter(window);
  EXPECT_EQ(full.reason(), Reason::kTimedOut);
  EXPECT_NE(full.message().find("(max_inflight)"), std::string_view::npos);
  window.leave("0->1", "r", "a", false);
  EXPECT_TRUE(enter(window).ok());
  EXPECT_EQ(window.size(), 0U);
}

TEST_F(EdgeWindowTest, AReputOfAKeyCountsOnce) {
  EdgeWindow window({2, -1}, keys_.still_there());
  put(window, "a");
  put(window, "a");
  EXPECT_EQ(window.size(), 1U);
  put(window, "b");
  EXPECT_FALSE(enter(window).ok());
}

TEST_F(EdgeWindowTest, CloseEndsWhoWaits) {
  EdgeWindow window({1, -1}, keys_.still_there());
  put(window, "a");
  Status status;
  {
    std::jthread waits([&] { status = window.enter("0->1", Deadline::in(seconds(30))); });
    while (keys_.asked() < 2) std::this_thread::yield();
    window.close();
  }
  EXPECT_EQ(status.reason(), Reason::kClosed);
  EXPECT_EQ(enter(window).reason(), Reason::kClosed);
}

TEST_F(EdgeWindowTest, WhatWasPutUnderAnIdIsFoundAgain) {
  EdgeWindow window({}, keys_.still_there());
  put(window, "a:0_1", "a");
  put(window, "a:0_2", "a", "0->2");
  put(window, "b:0_1", "b");
  EXPECT_EQ(window.take("a"), (std::vector<std::string>{"a:0_1", "a:0_2"}));
  EXPECT_TRUE(window.take("a").empty());
  window.forget("b:0_1");
  window.forget("b:0_1");
  EXPECT_EQ(window.size(), 0U);
}

TEST_F(EdgeWindowTest, ReapingAsksForTheOldestFirstAndThenForTheOthers) {
  EdgeWindow window({}, keys_.still_there());
  for (int at = 0; at < 10; ++at) put(window, std::to_string(at));
  keys_.remove("1");
  keys_.remove("7");
  EXPECT_EQ(window.reap(4), 1U);
  EXPECT_EQ(keys_.asked(), 4);
  EXPECT_EQ(window.reap(4), 1U);  // 4 5 6 7
  EXPECT_EQ(window.size(), 8U);
}

TEST_F(EdgeWindowTest, TheOldestIsForgottenBeyondTheBound) {
  EdgeWindow window({}, keys_.still_there());
  for (size_t at = 0; at <= EdgeWindow::kMaxRemembered; ++at) {
    ASSERT_TRUE(window.enter("0->1", Deadline::in(seconds(1))).ok());
    window.leave("0->1", std::to_string(at), std::to_string(at), true);
  }
  EXPECT_EQ(window.size(), EdgeWindow::kMaxRemembered);
  EXPECT_TRUE(window.take("0").empty());
  EXPECT_EQ(window.take("1").size(), 1U);
}

TEST_F(EdgeWindowTest, ARequestsChunksAreFoundByItsIdAndOnlyThose) {
  EdgeWindow window({}, keys_.still_there());
  put(window, "a", "req");
  put(window, "b", "req_0_0");
  put(window, "c", "req_0_17");
  const std::vector<std::string> others = {"req_1_0",   "req_0_",      "req_0",   "req_0_1x",
                                           "req_0_1_2", "req_00_1",    "request", "re_0_1",
                                           "req_00",    "req-2_0_0_1", "rer_0_1"};
  for (const std::string& id : others) put(window, id, id);
  put(window, "d", "req_12_3", "12->13");
  EXPECT_EQ(window.take("req"), (std::vector<std::string>{"a", "b", "c", "d"}));
  EXPECT_EQ(window.size(), others.size());
  EXPECT_EQ(window.take("req_1"), std::vector<std::string>{});
}

}  // namespace
}  // namespace stagelink::store_connector
