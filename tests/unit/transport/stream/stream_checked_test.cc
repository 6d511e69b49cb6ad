// Connections whose frames carry sums, and bits that flip on their way.

#include <algorithm>

#include <gtest/gtest.h>

#include "unit/transport/flip_relay.h"
#include "unit/transport/stream/stream_rig.h"

namespace stagelink::transport {
namespace {

constexpr size_t kRanges = 3;
constexpr size_t kRangeBytes = 10;
constexpr size_t kGap = 6;
constexpr size_t kBytes = kRanges * (kRangeBytes + kGap);

// Both ends of a checked connection, with a relay between them.
struct RelayedPair : StreamChannel::Owner {
  explicit RelayedPair(std::optional<FlipRelay::Flip> flip = std::nullopt) {
    registry = std::move(*memory::RegionRegistry::create(random_instance_id(), 16));
    poller = std::move(*Poller::create());
    server = std::make_unique<StreamServer>(*poller, *registry, metrics);
    for (size_t i = 0; i < kBytes; ++i) {
      remote[i] = static_cast<std::byte>(i + 1);
      local[i] = static_cast<std::byte>(0x80 + i);
    }
    region = *registry->add(remote.data(), remote.size(), Access::kReadWrite);
    auto [ours, near] = socket_pair();
    auto [theirs, far] = socket_pair();
    relay = std::make_unique<FlipRelay>(std::move(near), std::move(far), flip);
    EXPECT_TRUE(server->serve(std::move(theirs), InstanceId{1, 2}, {.checked = true}).ok());
    channel = StreamChannel::create(*poller, std::move(ours), *this, {.checked = true});
  }
  ~RelayedPair() { channel->close(Status(Reason::kClosed, "test over")); }

  void on_lost(StreamChannel&, const Status& why) override { lost = why; }
  void post(TestRequest& request, Direction direction) {
    std::vector<CopyItem> items;
    for (size_t i = 0; i < kRanges; ++i) {
      const size_t at = i * (kRangeBytes + kGap);
      items.push_back({local.data() + at, at, kRangeBytes, 0});
    }
    prepare(request, direction, std::move(items), {ref_of(*region)});
    channel->post(request);
  }
  void step() {
    poller->run_once(Duration::zero());
    relay->step();
  }
  // Far more steps than a request needs, and far fewer than its deadline.
  void finish(const TestRequest& request) {
    for (int i = 0; i < 2000 && !request.done(); ++i) step();
  }

  FakeMetrics metrics;
  std::unique_ptr<memory::RegionRegistry> registry;
  std::unique_ptr<Poller> poller;
  std::unique_ptr<StreamServer> server;
  std::vector<std::byte> remote = std::vector<std::byte>(kBytes);
  std::vector<std::byte> local = std::vector<std::byte>(kBytes);
  std::shared_ptr<memory::RegionRecord> region;
  std::unique_ptr<FlipRelay> relay;
  std::shared_ptr<StreamChannel> channel;
  std::optional<Status> lost;
};

// What one request sends in each direction.
std::array<uint64_t, 2> bytes_of_a(Direction direction) {
  RelayedPair pair;
  TestRequest request;
  pair.post(request, direction);
  pair.finish(request);
  EXPECT_TRUE(request.status.ok()) << request.status.to_string();
  for (int i = 0; i < 10; ++i) pair.step();
  return {pair.relay->carried(0), pair.relay->carried(1)};
}

class StreamCheckedTest : public testing::TestWithParam<Direction> {};
INSTANTIATE_TEST_SUITE_P(Directions, StreamCheckedTest,
                         testing::Values(Direction::kRead, Direction::kWrite),
                         [](const auto& test) {
                           return test.param == Direction::kRead ? "Read" : "Write";
                         });

// Headers, range list, data, outcome and sums: whatever bit it is, the request fails at once.
TEST_P(StreamCheckedTest, NoFlippedBitIsReportedAsSuccess) {
  const auto sizes = bytes_of_a(GetParam());
  size_t told = 0;
  for (int direction = 0; direction < 2; ++direction) {
    for (uint64_t bit = 0; bit < sizes[static_cast<size_t>(direction)] * 8; ++bit) {
      RelayedPair pair(FlipRelay::Flip{direction, bit});
      TestRequest request;
      pair.post(request, GetParam());
      pair.finish(request);
      SCOPED_TRACE("direction " + std::to_string(direction) + ", bit " + std::to_string(bit));
      ASSERT_TRUE(request.done()) << "it waits for bytes that never come";
      ASSERT_TRUE(request.status.reason() == Reason::kChecksum ||
                  request.status.reason() == Reason::kConnectionCut)
          << request.status.to_string();
      if (request.status.reason() == Reason::kChecksum) ++told;
      for (int i = 0; i < 20; ++i) pair.step();
      ASSERT_TRUE(pair.lost.has_value());
      ASSERT_EQ(pair.server->connections(), 0U);
      ASSERT_EQ(pair.region->gate.pins(), 0U);
      // What lies between the ranges is nobody's.
      for (size_t i = kRangeBytes; i < kBytes; ++i) {
        if (i % (kRangeBytes + kGap) < kRangeBytes) continue;
        ASSERT_EQ(pair.remote[i], static_cast<std::byte>(i + 1));
        ASSERT_EQ(pair.local[i], static_cast<std::byte>(0x80 + i));
      }
    }
  }
  // Only damage in a header leaves open which request it was.
  const size_t headers = 3 * wire::kFrameHeaderBytes * 8;
  EXPECT_EQ(told, (sizes[0] + sizes[1]) * 8 - headers);
}

TEST_P(StreamCheckedTest, OtherRequestsAreToldThatTheConnectionIsCut) {
  const auto sizes = bytes_of_a(GetParam());
  // In the last payload of the first request, which has a neighbour behind it.
  const uint64_t byte = GetParam() == Direction::kRead ? wire::kFrameHeaderBytes + 3 : sizes[0] - 9;
  RelayedPair pair(FlipRelay::Flip{GetParam() == Direction::kRead ? 1 : 0, byte * 8});
  TestRequest first;
  TestRequest second;
  pair.post(first, GetParam());
  pair.post(second, GetParam());
  pair.finish(first);
  pair.finish(second);
  EXPECT_EQ(first.status.reason(), Reason::kChecksum) << first.status.to_string();
  EXPECT_EQ(second.status.reason(), Reason::kConnectionCut) << second.status.to_string();
}

TEST(StreamCheckedCostTest, NoSystemCallMoreThanWithout) {
  for (const Direction direction : {Direction::kRead, Direction::kWrite}) {
    for (const size_t bytes : {8UL, 4096UL, 1UL << 20, 5UL << 20}) {
      std::array<uint64_t, 2> calls{};
      for (const bool checked : {false, true}) {
        StreamRig rig(0, checked ? RigKind::kChecked : RigKind::kPlain);
        std::vector<std::byte> local(bytes);
        std::vector<std::byte> remote(bytes);
        const auto region = rig.add_region(remote);
        for (int round = 0; round < 4; ++round) {
          TestRequest request;
          prepare(request, direction, {{local.data(), 0, bytes, 0}}, {ref_of(*region)});
          rig.channel->post(request);
          rig.finish(request);
          ASSERT_TRUE(request.status.ok()) << request.status.to_string();
        }
        calls[checked ? 1 : 0] = rig.channel->socket_calls();
      }
      EXPECT_LE(calls[1], calls[0]) << bytes << " bytes";
    }
  }
}

TEST(StreamCheckedCostTest, APlainEndIsNoMatchForACheckedOne) {
  auto [ours, theirs] = socket_pair();
  const auto registry = std::move(*memory::RegionRegistry::create(random_instance_id(), 16));
  const auto poller = std::move(*Poller::create());
  FakeMetrics metrics;
  StreamServer server(*poller, *registry, metrics);
  ASSERT_TRUE(server.serve(std::move(theirs), InstanceId{1, 2}, {.checked = true}).ok());
  const auto header = wire::encode(wire::FrameHeader{.type = wire::FrameType::kCancel});
  ASSERT_EQ(::send(ours.get(), header.data(), header.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(header.size()));
  for (int i = 0; i < 10; ++i) poller->run_once(Duration::zero());
  EXPECT_EQ(server.connections(), 0U);
  EXPECT_EQ(metrics.last_failure.load(), Reason::kChecksum);
}

}  // namespace
}  // namespace stagelink::transport
