#include <atomic>
#include <cstring>
#include <thread>

#include <gtest/gtest.h>

#include "base/futex.h"
#include "unit/transport/stream/stream_rig.h"

namespace stagelink::transport {
namespace {

// Runs a poller until told to stop.
class LoopThread {
 public:
  explicit LoopThread(Poller& poller) : poller_(poller), thread_([this] { loop(); }) {}
  ~LoopThread() {
    stop_ = true;
    poller_.wake();
    thread_.join();
  }

 private:
  void loop() {
    while (!stop_) poller_.run_once(std::chrono::seconds(10));
  }
  Poller& poller_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class WaitableRequest final : public PostedRequest {
 public:
  void on_done(Status outcome) override {
    status = std::move(outcome);
    ++times;
    ended.store(1);
    futex_wake_all(ended, FutexScope::kProcess);
  }
  void wait() {
    while (ended.load() == 0) futex_wait(ended, 0, std::chrono::seconds(1), FutexScope::kProcess);
    ended.store(0);
  }
  std::vector<CopyItem> held;
  RemoteRegionRef ref;
  Status status;
  int times = 0;
  std::atomic<uint32_t> ended{0};
};

TEST(StreamThreadsTest, ManyThreadsReadWriteAndCancelOnOneChannel) {
  const uint64_t seed = random_u64();
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr size_t kThreads = 4;
  constexpr size_t kPart = 256 << 10;
  constexpr int kRounds = 150;
  StreamRig rig;
  std::vector<std::byte> remote(kThreads * kPart);
  std::vector<std::byte> local(kThreads * kPart);
  const auto region = rig.add_region(remote);
  std::atomic<int> succeeded{0};
  {
    LoopThread owner(*rig.owner_poller);
    LoopThread initiator(*rig.poller);
    std::vector<std::thread> threads;
    for (size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        SplitMix64 random(seed + t);
        std::byte* const mine = local.data() + t * kPart;
        std::vector<std::byte> sent(kPart);
        WaitableRequest request;
        for (int round = 0; round < kRounds; ++round) {
          // Writes a pattern to its part, then reads it back; sometimes cancels the read.
          fill_random(sent, random);
          std::memcpy(mine, sent.data(), kPart);
          request.held = {{mine, t * kPart, kPart, 0}};
          request.items = request.held;
          request.ref = ref_of(*region);
          request.remote_regions = {&request.ref, 1};
          request.deadline = Deadline::in(std::chrono::seconds(60));
          request.direction = Direction::kWrite;
          rig.channel->post(request);
          request.wait();
          ASSERT_TRUE(request.status.ok()) << request.status.to_string();
          std::memset(mine, 0, kPart);
          request.direction = Direction::kRead;
          rig.channel->post(request);
          const bool cancel = random.below(3) == 0;
          if (cancel) rig.channel->cancel(request, Status(Reason::kCancelled, "test"));
          request.wait();
          if (request.status.ok()) {
            ASSERT_EQ(std::memcmp(mine, sent.data(), kPart), 0);
            ++succeeded;
          } else {
            ASSERT_TRUE(cancel);
            ASSERT_EQ(request.status.reason(), Reason::kCancelled);
          }
        }
        EXPECT_EQ(request.times, 2 * kRounds);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_GE(succeeded, static_cast<int>(kThreads) * kRounds / 2);
  rig.settle();
  EXPECT_EQ(region->gate.pins(), 0U);
}

TEST(StreamThreadsTest, ALossWhileThreadsPostForgetsNoRequest) {
  for (int round = 0; round < 20; ++round) {
    StreamRig rig;
    std::vector<std::byte> remote(1 << 20);
    std::vector<std::byte> local(1 << 20);
    const auto region = rig.add_region(remote);
    std::atomic<int> posted{0};
    std::vector<std::thread> threads;
    LoopThread initiator(*rig.poller);
    for (size_t t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        WaitableRequest request;
        do {
          request.held = {{local.data() + t * 1000, t * 1000, 1000, 0}};
          request.items = request.held;
          request.ref = ref_of(*region);
          request.remote_regions = {&request.ref, 1};
          request.deadline = Deadline::in(std::chrono::seconds(60));
          rig.channel->post(request);
          ++posted;
          request.wait();
        } while (request.status.ok());
        EXPECT_EQ(request.status.reason(), Reason::kConnectionCut) << request.status.to_string();
      });
    }
    while (posted < 100) rig.owner_poller->run_once(std::chrono::milliseconds(1));
    rig.server->drop(InstanceId{1, 2});
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace stagelink::transport
