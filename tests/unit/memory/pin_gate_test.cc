#include "memory/pin_gate.h"

#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace stagelink::memory {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(PinGateTest, PinsWhileOpen) {
  PinGate gate;
  EXPECT_TRUE(gate.try_pin());
  EXPECT_TRUE(gate.try_pin());
  EXPECT_EQ(gate.pins(), 2U);
  gate.unpin();
  EXPECT_EQ(gate.pins(), 1U);
  gate.unpin();
}

TEST(PinGateTest, RefusesPinsOnceClosed) {
  PinGate gate;
  gate.close();
  EXPECT_TRUE(gate.closed());
  EXPECT_FALSE(gate.try_pin());
  EXPECT_EQ(gate.pins(), 0U);
}

TEST(PinGateTest, OpenGateIsNeverUnpinned) {
  PinGate gate;
  EXPECT_FALSE(gate.wait_unpinned(Deadline::in(milliseconds(5))));
}

TEST(PinGateTest, CloseWaitsForPinsUpToTheDeadline) {
  PinGate gate;
  ASSERT_TRUE(gate.try_pin());
  gate.close();
  const Deadline deadline = Deadline::in(milliseconds(20));
  EXPECT_FALSE(gate.wait_unpinned(deadline));
  EXPECT_TRUE(deadline.passed());
  gate.unpin();
  EXPECT_TRUE(gate.wait_unpinned(Deadline::in(Duration::zero())));
}

TEST(PinGateTest, LastUnpinWakesTheWaiter) {
  PinGate gate;
  ASSERT_TRUE(gate.try_pin());
  ASSERT_TRUE(gate.try_pin());
  gate.close();
  std::atomic<bool> waiting{false};
  std::atomic<bool> unpinned{false};
  std::thread waiter([&] {
    waiting = true;
    unpinned = gate.wait_unpinned(Deadline::in(seconds(60)));
  });
  while (!waiting) std::this_thread::yield();
  gate.unpin();
  EXPECT_FALSE(unpinned);
  gate.unpin();
  waiter.join();
  EXPECT_TRUE(unpinned);
}

TEST(PinGateTest, CloseWakesTheWaiterOfAnUnpinnedGate) {
  PinGate gate;
  std::atomic<bool> unpinned{false};
  std::thread waiter([&] { unpinned = gate.wait_unpinned(Deadline::in(seconds(60))); });
  gate.close();
  waiter.join();
  EXPECT_TRUE(unpinned);
}

TEST(PinGateTest, NothingUnderAPinIsSeenAfterTheWait) {
  constexpr int kThreads = 4;
  for (int round = 0; round < 50; ++round) {
    PinGate gate;
    std::vector<int> touched(kThreads, 0);  // Plain on purpose: a race shows under TSan.
    std::vector<std::thread> users;
    for (int i = 0; i < kThreads; ++i) {
      users.emplace_back([&gate, &touched, i] {
        while (gate.try_pin()) {
          ++touched[static_cast<size_t>(i)];
          gate.unpin();
        }
      });
    }
    gate.close();
    ASSERT_TRUE(gate.wait_unpinned(Deadline::in(seconds(60))));
    for (int& count : touched) count = -1;  // "Frees" what the users touched.
    for (std::thread& user : users) user.join();
    for (const int count : touched) EXPECT_EQ(count, -1);
  }
}

}  // namespace
}  // namespace stagelink::memory
