// Range lists: their budget, and long ones.

#include <algorithm>

#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include "transport/stream/list_budget.h"
#include "unit/transport/stream/raw_peer.h"
#include "unit/transport/stream/stream_rig.h"

namespace stagelink::transport {
namespace {

class Waiter final : public ListBudget::Waiter {
 public:
  void on_room() override { ++told; }
  int told = 0;
};

TEST(ListBudgetTest, WhoFindsNoRoomIsToldInTurn) {
  ListBudget budget;
  Waiter a;
  Waiter b;
  Waiter c;
  EXPECT_TRUE(budget.take(ListBudget::kMaxBytes - 10, a));
  EXPECT_TRUE(budget.take(10, a));
  EXPECT_FALSE(budget.take(20, b));
  EXPECT_FALSE(budget.take(1, c)) << "nobody overtakes";
  budget.give_back(10);
  EXPECT_EQ(b.told + c.told, 0);
  budget.give_back(10);
  EXPECT_EQ(b.told, 1);
  EXPECT_EQ(c.told, 0);
  budget.give_back(1);
  EXPECT_EQ(c.told, 1);
  EXPECT_EQ(budget.used(), ListBudget::kMaxBytes);
}

TEST(ListBudgetTest, OneListAlwaysFitsAndWhoLeavesTheLineBlocksNobody) {
  ListBudget budget;
  Waiter a;
  Waiter b;
  Waiter c;
  EXPECT_TRUE(budget.take(2 * ListBudget::kMaxBytes, a));
  EXPECT_FALSE(budget.take(2 * ListBudget::kMaxBytes, b));
  EXPECT_FALSE(budget.take(1, c));
  budget.give_back(2 * ListBudget::kMaxBytes - 1);
  EXPECT_EQ(b.told + c.told, 0);
  budget.forget(b);
  EXPECT_EQ(b.told, 0);
  EXPECT_EQ(c.told, 1);
}

// What a peer has sent, and the owner has not taken.
int untaken(int fd) {
  int bytes = -1;
  EXPECT_EQ(::ioctl(fd, SIOCOUTQ, &bytes), 0);
  return bytes;
}

TEST(StreamListTest, ConnectionsOfOnePeerShareABudget) {
  StreamRig rig;
  const auto step = [&] { rig.settle(); };
  std::vector<int> fds;
  std::vector<std::unique_ptr<RawPeer>> peers;
  const wire::FrameHeader announced{
      .type = wire::FrameType::kRead, .payload_bytes = wire::kMaxBatchBytes, .request_id = 1};
  const std::vector<std::byte> some(1000);
  for (int i = 0; i < 3; ++i) {
    auto [ours, theirs] = socket_pair();
    fds.push_back(ours.get());
    ASSERT_TRUE(rig.server->serve(std::move(theirs), InstanceId{8, 9}).ok());
    peers.push_back(std::make_unique<RawPeer>(std::move(ours), step));
    ASSERT_TRUE(peers.back()->send_bytes(wire::encode(announced)));
    ASSERT_TRUE(peers.back()->send_bytes(some));
  }
  // Two lists of 32 MiB are all that one peer may have under way.
  EXPECT_EQ(untaken(fds[0]), 0);
  EXPECT_EQ(untaken(fds[1]), 0);
  EXPECT_GT(untaken(fds[2]), 0);
  // Another peer has a budget of its own.
  auto [ours, theirs] = socket_pair();
  const int other = ours.get();
  ASSERT_TRUE(rig.server->serve(std::move(theirs), InstanceId{8, 10}).ok());
  RawPeer stranger(std::move(ours), step);
  ASSERT_TRUE(stranger.send_bytes(wire::encode(announced)));
  ASSERT_TRUE(stranger.send_bytes(some));
  EXPECT_EQ(untaken(other), 0);
  peers[0].reset();
  rig.settle();
  EXPECT_EQ(untaken(fds[2]), 0);
}

// What a failed write has still on its way must not land on top of its successor.
TEST(StreamServerTest, WriteFindsNobodyElseInTheMiddleOfOneThatWasGivenUp) {
  StreamRig rig;
  const auto step = [&] { rig.settle(); };
  std::vector<std::byte> remote(1000, std::byte{0});
  const auto region = rig.add_region(remote);
  wire::BatchHeader batch;
  batch.timeout_ms = 10'000;
  batch.total_bytes = remote.size();
  batch.regions = {{region->desc.index, region->desc.generation}};
  batch.ranges = {{.region = 0, .offset = 0, .bytes = remote.size()}};
  const auto connect = [&] {
    auto [ours, theirs] = socket_pair();
    EXPECT_TRUE(rig.server->serve(std::move(theirs), InstanceId{8, 9}).ok());
    return std::make_unique<RawPeer>(std::move(ours), step);
  };
  auto given_up = connect();
  const auto alive = connect();
  const auto next = connect();
  const size_t before = rig.server->connections();
  const auto bytes = [](size_t count, int value) {
    return std::vector<std::byte>(count, static_cast<std::byte>(value));
  };
  ASSERT_TRUE(given_up->send_batch(wire::FrameType::kWrite, 1, batch));
  ASSERT_TRUE(given_up->send_frame(wire::FrameType::kData, 1, bytes(400, 1)));
  ASSERT_TRUE(alive->send_batch(wire::FrameType::kWrite, 1, batch));
  EXPECT_EQ(region->gate.pins(), 2U) << "writers that live do not disturb each other";
  given_up.reset();
  ASSERT_TRUE(next->send_batch(wire::FrameType::kWrite, 1, batch));
  EXPECT_EQ(rig.server->connections(), before - 1);
  ASSERT_TRUE(next->send_frame(wire::FrameType::kData, 1, bytes(1000, 2)));
  EXPECT_EQ(std::count(remote.begin(), remote.end(), std::byte{2}), 1000);
  ASSERT_TRUE(alive->send_frame(wire::FrameType::kData, 1, bytes(1000, 3)));
  EXPECT_EQ(std::count(remote.begin(), remote.end(), std::byte{3}), 1000);
  EXPECT_EQ(region->gate.pins(), 0U);
}

// A list that is checked in several steps.
class LongListTest : public testing::TestWithParam<Direction> {
 protected:
  static constexpr uint64_t kRanges = 150'000;

  LongListTest() : local(kRanges), remote(2 * kRanges), random(random_u64()) {
    fill_random(local, random);
    fill_random(remote, random);
    region = rig.add_region(remote);
    std::vector<CopyItem> items;
    for (uint64_t i = 0; i < kRanges; ++i) items.push_back({local.data() + i, 2 * i, 1, 0, 0});
    prepare(request, GetParam(), std::move(items), {ref_of(*region)});
  }
  // Until the owner is in the middle of it.
  void begin() {
    rig.channel->post(request);
    for (int i = 0; i < 100'000 && region->gate.pins() == 0; ++i) rig.step();
    ASSERT_EQ(region->gate.pins(), 1U);
    ASSERT_EQ(rig.metrics.served_bytes, 0U);
  }
  void expect_in_step() {
    std::vector<std::byte> other(1000, std::byte{7});
    const auto next_region = rig.add_region(other);
    TestRequest next;
    prepare(next, Direction::kRead, {{local.data(), 0, other.size(), 0}}, {ref_of(*next_region)});
    rig.channel->post(next);
    rig.finish(next);
    EXPECT_TRUE(next.status.ok()) << next.status.to_string();
  }

  StreamRig rig;
  std::vector<std::byte> local;
  std::vector<std::byte> remote;
  SplitMix64 random;
  std::shared_ptr<memory::RegionRecord> region;
  TestRequest request;
};
INSTANTIATE_TEST_SUITE_P(Both, LongListTest, testing::Values(Direction::kRead, Direction::kWrite));

TEST_P(LongListTest, IsServedLikeAShortOne) {
  begin();
  rig.finish(request);
  ASSERT_TRUE(request.status.ok()) << request.status.to_string();
  for (uint64_t i = 0; i < kRanges; ++i) ASSERT_EQ(local[i], remote[2 * i]) << i;
  EXPECT_EQ(region->gate.pins(), 0U);
  expect_in_step();
}

TEST_P(LongListTest, RegionThatIsRetiredMeanwhileIsLetGoAtOnce) {
  begin();
  rig.registry->retire(*region);
  rig.server->tick();
  ASSERT_EQ(region->gate.pins(), 0U);
  rig.finish(request);
  EXPECT_EQ(request.status.reason(), Reason::kSuperseded) << request.status.to_string();
  expect_in_step();
}

TEST_P(LongListTest, CancelMeanwhileEndsIt) {
  begin();
  rig.channel->cancel(request, Status(Reason::kCancelled, "no more"));
  rig.finish(request);
  EXPECT_EQ(request.status.reason(), Reason::kCancelled);
  rig.settle();
  expect_in_step();
  EXPECT_EQ(region->gate.pins(), 0U);
}

TEST_P(LongListTest, ItsLastRangeIsLookedAtBeforeAByteMoves) {
  request.held.back().remote = remote.size();
  const auto local_before = local;
  const auto remote_before = remote;
  rig.channel->post(request);
  rig.finish(request);
  EXPECT_EQ(request.status.reason(), Reason::kOutOfBounds) << request.status.to_string();
  EXPECT_TRUE(same_bytes(local, local_before));
  EXPECT_TRUE(same_bytes(remote, remote_before));
  EXPECT_EQ(region->gate.pins(), 0U);
  expect_in_step();
}

}  // namespace
}  // namespace stagelink::transport
