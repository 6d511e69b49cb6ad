#include "transport/fault/fault_posted_transport.h"

#include <bit>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "unit/transport/stream/stream_rig.h"

namespace stagelink::transport {
namespace {

int bits_that_differ(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  int bits = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    bits += std::popcount(static_cast<unsigned>(a[i] ^ b[i]));
  }
  return bits;
}

// A stream with faults between two ends in one thread.
struct FaultPostedTransportTest : testing::Test {
  FaultPostedTransportTest() : local(100'000, std::byte{1}), remote(100'000, std::byte{2}) {
    region = rig.add_region(remote);
  }
  ~FaultPostedTransportTest() override {
    if (faulty != nullptr) faulty->close(Status(Reason::kClosed, "test over"));
  }
  void make(uint32_t EngineOptions::*rate) {
    EngineOptions options;
    options.fault_seed = 4;
    options.*rate = 1'000'000;
    faulty = std::make_unique<FaultPostedTransport>(
        *rig.poller, rig.channel, std::make_shared<FaultInjector>(options, rig.metrics),
        [this](const Status& why) { cut = why; });
  }
  void post(Direction direction) {
    prepare(request, direction, {{local.data(), 0, local.size(), 0}}, {ref_of(*region)});
    faulty->post(request);
  }
  void run_until_done() {
    for (int i = 0; i < 10'000 && !request.done(); ++i) {
      rig.owner_poller->run_once(Duration::zero());
      rig.poller->run_once(std::min<Duration>(faulty->tick(), std::chrono::milliseconds(1)));
    }
    EXPECT_EQ(request.ended, 1);
  }

  StreamRig rig;
  std::vector<std::byte> local;
  std::vector<std::byte> remote;
  std::shared_ptr<memory::RegionRecord> region;
  std::unique_ptr<FaultPostedTransport> faulty;
  std::optional<Status> cut;
  TestRequest request;
};

TEST_F(FaultPostedTransportTest, AFlippedReadDiffersInOneBit) {
  make(&EngineOptions::fault_flip_ppm);
  post(Direction::kRead);
  run_until_done();
  EXPECT_TRUE(request.status.ok());
  EXPECT_EQ(bits_that_differ(local, remote), 1);
  EXPECT_EQ(rig.metrics.faults, 1U);
}

TEST_F(FaultPostedTransportTest, AFlippedWriteSpoilsTheRemoteSideOnly) {
  make(&EngineOptions::fault_flip_ppm);
  post(Direction::kWrite);
  run_until_done();
  EXPECT_TRUE(request.status.ok());
  EXPECT_EQ(bits_that_differ(local, remote), 1);
  EXPECT_EQ(bits_that_differ(local, std::vector<std::byte>(local.size(), std::byte{1})), 0);
}

TEST_F(FaultPostedTransportTest, AFlippedRequestCanBeCancelled) {
  make(&EngineOptions::fault_flip_ppm);
  post(Direction::kRead);
  faulty->cancel(request, Status(Reason::kCancelled, "test"));
  run_until_done();
  EXPECT_EQ(request.status.reason(), Reason::kCancelled);
}

TEST_F(FaultPostedTransportTest, ADroppedRequestEndsAtItsDeadline) {
  make(&EngineOptions::fault_drop_ppm);
  prepare(request, Direction::kRead, {{local.data(), 0, local.size(), 0}}, {ref_of(*region)});
  request.deadline = Deadline::in(std::chrono::milliseconds(15));
  faulty->post(request);
  EXPECT_LE(faulty->tick(), std::chrono::milliseconds(15));
  EXPECT_FALSE(request.done());
  run_until_done();
  EXPECT_TRUE(request.deadline.passed());
  EXPECT_EQ(request.status.reason(), Reason::kTimedOut);
  EXPECT_EQ(local.front(), std::byte{1});
}

TEST_F(FaultPostedTransportTest, ADroppedRequestCanBeCancelled) {
  make(&EngineOptions::fault_drop_ppm);
  post(Direction::kRead);
  faulty->cancel(request, Status(Reason::kCancelled, "test"));
  EXPECT_EQ(request.ended, 0) << "cancel() itself must not call back";
  faulty->tick();
  EXPECT_EQ(request.ended, 1);
  EXPECT_EQ(request.status.reason(), Reason::kCancelled);
}

TEST_F(FaultPostedTransportTest, ADelayedRequestSucceedsLater) {
  make(&EngineOptions::fault_delay_ppm);
  post(Direction::kRead);
  for (int i = 0; i < 3; ++i) rig.step();
  EXPECT_FALSE(request.done());
  run_until_done();
  EXPECT_TRUE(request.status.ok());
  EXPECT_EQ(bits_that_differ(local, remote), 0);
}

TEST_F(FaultPostedTransportTest, ACutEndsTheRequestAndCallsForTheEndOfThePeer) {
  make(&EngineOptions::fault_cut_ppm);
  post(Direction::kWrite);
  EXPECT_EQ(request.ended, 0) << "post() itself must not call back";
  faulty->tick();
  EXPECT_EQ(request.ended, 1);
  EXPECT_EQ(request.status.code(), Code::kPeerLost);
  ASSERT_TRUE(cut.has_value());
}

TEST_F(FaultPostedTransportTest, CloseEndsWhatIsHeldBack) {
  make(&EngineOptions::fault_drop_ppm);
  post(Direction::kRead);
  faulty->close(Status(Reason::kClosed, "test"));
  EXPECT_EQ(request.ended, 1);
  EXPECT_EQ(request.status.reason(), Reason::kClosed);
}

}  // namespace
}  // namespace stagelink::transport
