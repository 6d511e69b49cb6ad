#include <algorithm>
#include <cstring>

#include <gtest/gtest.h>

#include "unit/transport/stream/stream_rig.h"

namespace stagelink::transport {
namespace {

constexpr size_t kBytes = 3 << 20;

// On each kind of connection.
struct StreamCancelTest : testing::TestWithParam<RigKind> {
  StreamCancelTest() : local(kBytes), remote(kBytes), random(random_u64()) {
    fill_random(local, random);
    fill_random(remote, random);
    region = rig.add_region(remote);
  }
  void post(TestRequest& request, Direction direction) {
    prepare(request, direction, items_of(local, GetParam()), {ref_of(*region)});
    rig.channel->post(request);
  }
  void step_randomly() {
    for (uint64_t n = random.below(40); n > 0; --n) {
      if (random.below(2) == 0) rig.step_initiator();
      if (random.below(2) == 0) rig.step_owner();
    }
  }
  void expect_in_step() {
    TestRequest next;
    post(next, Direction::kRead);
    rig.finish(next);
    ASSERT_TRUE(next.status.ok()) << next.status.to_string();
    ASSERT_TRUE(same_bytes(local, remote));
    ASSERT_FALSE(rig.lost.has_value()) << rig.lost->to_string();
  }

  StreamRig rig{64 << 10, GetParam()};
  std::vector<std::byte> local;
  std::vector<std::byte> remote;
  SplitMix64 random;
  std::shared_ptr<memory::RegionRecord> region;
};

INSTANTIATE_TEST_SUITE_P(Kinds, StreamCancelTest,
                         testing::Values(RigKind::kPlain, RigKind::kChecked, RigKind::kStaged),
                         [](const auto& kind) { return rig_name(kind.param); });

TEST_P(StreamCancelTest, ACancelledReadTouchesNoMemoryAfterItsEnd) {
  for (int round = 0; round < 100; ++round) {
    TestRequest request;
    post(request, Direction::kRead);
    step_randomly();
    if (request.done()) continue;
    rig.channel->cancel(request, Status(Reason::kCancelled, "test"));
    EXPECT_EQ(request.ended, 0) << "cancel() itself must not call back";
    rig.step_initiator();
    ASSERT_EQ(request.ended, 1);
    fill_random(local, random);
    const auto ours = local;
    rig.settle();
    ASSERT_EQ(request.ended, 1);
    ASSERT_TRUE(same_bytes(local, ours));
  }
  expect_in_step();
}

TEST_P(StreamCancelTest, ACancelledWriteSendsNothingOfWhatTheMemoryHoldsLater) {
  constexpr int kLater = 0xee;
  for (int round = 0; round < 50; ++round) {
    std::memset(local.data(), 0x11, local.size());
    std::memset(remote.data(), 0x22, remote.size());
    TestRequest request;
    post(request, Direction::kWrite);
    step_randomly();
    if (request.done()) continue;
    rig.channel->cancel(request, Status(Reason::kCancelled, "test"));
    rig.step_initiator();
    ASSERT_EQ(request.ended, 1);
    std::memset(local.data(), kLater, local.size());
    rig.settle();
    ASSERT_EQ(std::memchr(remote.data(), kLater, remote.size()), nullptr);
    EXPECT_EQ(region->gate.pins(), 0U);
  }
  expect_in_step();
}

TEST_P(StreamCancelTest, RequestsThatWaitInTheQueueCanBeCancelled) {
  std::vector<std::unique_ptr<TestRequest>> requests;
  for (int i = 0; i < 40; ++i) {
    requests.push_back(std::make_unique<TestRequest>());
    post(*requests.back(), Direction::kRead);
  }
  rig.step_initiator();
  for (size_t i = 20; i < requests.size(); i += 2) {
    rig.channel->cancel(*requests[i], Status(Reason::kCancelled, "test"));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    rig.finish(*requests[i]);
    const bool cancelled = i >= 20 && i % 2 == 0;
    EXPECT_EQ(requests[i]->status.reason(), cancelled ? Reason::kCancelled : Reason::kOk) << i;
  }
}

TEST_P(StreamCancelTest, ACancelThatComesTooLateDoesNotHitTheNextUse) {
  TestRequest request;
  post(request, Direction::kRead);
  bool again = false;
  request.then = [&] {
    if (again) return;
    again = true;
    rig.channel->post(request);
  };
  // The answer is there before the cancel is looked at, in the same round of the loop.
  for (int i = 0; i < 100000 && !request.done(); ++i) {
    rig.step_owner();
    rig.channel->cancel(request, Status(Reason::kCancelled, "late"));
    rig.channel->cancel(request, Status(Reason::kCancelled, "later"));
    rig.step_initiator();
  }
  for (int i = 0; i < 100000 && request.ended < 2; ++i) rig.step();
  EXPECT_EQ(request.ended, 2);
  EXPECT_TRUE(request.status.ok()) << request.status.to_string();
}

TEST_P(StreamCancelTest, ADeadlineEndsARequestWhoseOwnerIsSilent) {
  TestRequest read;
  TestRequest write;
  post(read, Direction::kRead);
  post(write, Direction::kWrite);
  read.deadline = Deadline::in(std::chrono::milliseconds(20));
  write.deadline = Deadline::in(std::chrono::milliseconds(500));
  rig.step_initiator();
  const Duration first = rig.channel->tick();
  EXPECT_LE(first, std::chrono::milliseconds(20));
  while (!read.deadline.passed()) rig.poller->run_once(read.deadline.left());
  const Duration second = rig.channel->tick();
  EXPECT_EQ(read.ended, 1);
  EXPECT_EQ(read.status.reason(), Reason::kTimedOut);
  EXPECT_LE(second, std::chrono::milliseconds(500));
  while (!write.deadline.passed()) rig.poller->run_once(write.deadline.left());
  EXPECT_EQ(rig.channel->tick(), Deadline::kLongest);
  EXPECT_EQ(write.ended, 1);
  EXPECT_EQ(write.status.reason(), Reason::kTimedOut);
  rig.settle();
  expect_in_step();
}

TEST_P(StreamCancelTest, ADeadlineEndsRequestsInTheQueueToo) {
  std::vector<std::unique_ptr<TestRequest>> requests;
  for (size_t i = 0; i < 2 * StreamChannel::kMaxInFlight; ++i) {
    requests.push_back(std::make_unique<TestRequest>());
    post(*requests.back(), Direction::kRead);
    requests.back()->deadline = Deadline::in(std::chrono::milliseconds(10));
  }
  rig.step_initiator();
  while (!requests.back()->deadline.passed()) rig.poller->run_once(std::chrono::milliseconds(1));
  rig.channel->tick();
  for (const auto& request : requests) {
    EXPECT_EQ(request->ended, 1);
    EXPECT_EQ(request->status.reason(), Reason::kTimedOut);
  }
}

TEST_P(StreamCancelTest, CloseEndsEveryRequestWithItsReason) {
  std::vector<std::unique_ptr<TestRequest>> requests;
  for (int i = 0; i < 40; ++i) {
    requests.push_back(std::make_unique<TestRequest>());
    post(*requests.back(), i % 2 == 0 ? Direction::kRead : Direction::kWrite);
    if (i == 30) rig.step();
  }
  rig.channel->close(Status(Reason::kClosed, "test"));
  TestRequest after;
  post(after, Direction::kRead);
  for (const auto& request : requests) {
    EXPECT_EQ(request->ended, 1);
    EXPECT_EQ(request->status.reason(), Reason::kClosed);
  }
  EXPECT_EQ(after.ended, 1);
  EXPECT_EQ(after.status.reason(), Reason::kClosed);
  EXPECT_FALSE(rig.lost.has_value());
  rig.settle();
  EXPECT_EQ(rig.server->connections(), 0U);
  EXPECT_EQ(region->gate.pins(), 0U);
}

TEST_P(StreamCancelTest, TheLossOfTheOwnerEndsEveryRequest) {
  std::vector<std::unique_ptr<TestRequest>> requests;
  for (int i = 0; i < 40; ++i) {
    requests.push_back(std::make_unique<TestRequest>());
    post(*requests.back(), i % 2 == 0 ? Direction::kRead : Direction::kWrite);
  }
  rig.step();
  rig.server->drop(InstanceId{1, 2});
  EXPECT_EQ(rig.server->connections(), 0U);
  for (const auto& request : requests) {
    rig.finish(*request);
    EXPECT_EQ(request->status.reason(), Reason::kConnectionCut);
  }
  ASSERT_TRUE(rig.lost.has_value());
  EXPECT_EQ(rig.lost->code(), Code::kPeerLost);
  EXPECT_EQ(region->gate.pins(), 0U);
}

}  // namespace
}  // namespace stagelink::transport
