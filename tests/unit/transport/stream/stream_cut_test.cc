#include <algorithm>
#include <array>
#include <cstring>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "unit/transport/stream/stream_rig.h"

namespace stagelink::transport {
namespace {

// Stands between the two ends and passes bytes on until it has had enough.
class Cable {
 public:
  Cable(UniqueFd a, UniqueFd b, size_t cut_after)
      : a_(std::move(a)), b_(std::move(b)), left_(cut_after) {}
  void step() {
    pass(a_, b_);
    pass(b_, a_);
  }
  bool is_cut() const { return !a_; }

 private:
  void pass(const UniqueFd& from, const UniqueFd& to) {
    if (!from) return;
    std::array<std::byte, 4096> buffer;
    const size_t most = std::min(buffer.size(), left_);
    const ssize_t got = most == 0 ? 0 : ::recv(from.get(), buffer.data(), most, MSG_DONTWAIT);
    for (ssize_t sent = 0; sent < got;) {
      const ssize_t n =
          ::send(to.get(), buffer.data() + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
      if (n > 0) sent += n;
      if (n < 0 && errno != EAGAIN) break;
    }
    if (got > 0) left_ -= static_cast<size_t>(got);
    if (left_ == 0 || got == 0) {
      a_.reset();
      b_.reset();
    }
  }

  UniqueFd a_;
  UniqueFd b_;
  size_t left_;
};

struct StreamCutTest : testing::TestWithParam<Direction>, StreamChannel::Owner {
  void on_lost(StreamChannel&, const Status& why) override {
    ++losses;
    last_loss = why;
  }
  int losses = 0;
  Status last_loss;
};

INSTANTIATE_TEST_SUITE_P(Directions, StreamCutTest,
                         testing::Values(Direction::kRead, Direction::kWrite));

TEST_P(StreamCutTest, ACutAtAnyByteEndsTheRequestOnceAndFreesTheRegion) {
  const uint64_t seed = random_u64();
  SCOPED_TRACE("seed " + std::to_string(seed));
  SplitMix64 random(seed);
  FakeMetrics metrics;
  const auto registry = std::move(*memory::RegionRegistry::create(random_instance_id(), 16));
  const auto poller = std::move(*Poller::create());
  StreamServer server(*poller, *registry, metrics);
  std::vector<std::byte> local(40'000);
  std::vector<std::byte> remote(40'000);
  fill_random(local, random);
  fill_random(remote, random);
  const auto region = *registry->add(remote.data(), remote.size(), Access::kReadWrite);
  int cut_ones = 0;
  for (size_t round = 0; round < 300; ++round) {
    // The first rounds cut inside the headers, byte by byte.
    const size_t cut_after = round < 150 ? round + 1 : 1 + random.below(45'000);
    auto [near_end, cable_a] = socket_pair();
    auto [cable_b, far_end] = socket_pair();
    ASSERT_TRUE(server.serve(std::move(far_end), InstanceId{1, 1}).ok());
    const auto channel = StreamChannel::create(*poller, std::move(near_end), *this);
    Cable cable(std::move(cable_a), std::move(cable_b), cut_after);
    losses = 0;
    TestRequest request;
    TestRequest waiting;
    prepare(request, GetParam(), {{local.data(), 0, 39'000, 0}}, {ref_of(*region)});
    prepare(waiting, GetParam(), {{local.data() + 39'000, 39'000, 1000, 0}}, {ref_of(*region)});
    channel->post(request);
    channel->post(waiting);
    for (int i = 0; i < 10'000 && !(request.done() && waiting.done()); ++i) {
      poller->run_once(Duration::zero());
      cable.step();
    }
    for (int i = 0; i < 5; ++i) poller->run_once(Duration::zero());
    ASSERT_EQ(request.ended, 1) << cut_after;
    ASSERT_EQ(waiting.ended, 1) << cut_after;
    if (cable.is_cut()) {
      ++cut_ones;
      ASSERT_EQ(losses, 1);
      ASSERT_EQ(last_loss.code(), Code::kPeerLost);
      ASSERT_EQ(waiting.status.reason(), Reason::kConnectionCut) << waiting.status.to_string();
    }
    const bool whole = std::memcmp(local.data(), remote.data(), 39'000) == 0;
    ASSERT_TRUE(whole || !request.status.ok());
    fill_random(GetParam() == Direction::kRead ? local : remote, random);
    channel->close(Status(Reason::kClosed, "test"));
    server.drop(InstanceId{1, 1});
    ASSERT_EQ(region->gate.pins(), 0U);
  }
  EXPECT_GT(cut_ones, 150);
}

}  // namespace
}  // namespace stagelink::transport
