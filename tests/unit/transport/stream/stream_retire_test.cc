#include <algorithm>

#include <gtest/gtest.h>

#include "unit/transport/stream/stream_rig.h"

namespace stagelink::transport {
namespace {

// A region is deregistered while a peer that takes its time reads or writes it.
struct StreamRetireTest : testing::TestWithParam<std::tuple<size_t, RigKind>> {
  StreamRetireTest() : local(std::get<0>(GetParam())), remote(local.size()), random(random_u64()) {
    fill_random(local, random);
    fill_random(remote, random);
    region = rig.add_region(remote);
  }
  void begin(TestRequest& request, Direction direction, int steps) {
    prepare(request, direction, items_of(local, std::get<1>(GetParam())), {ref_of(*region)});
    rig.channel->post(request);
    for (int i = 0; i < steps; ++i) rig.step();
    ASSERT_FALSE(request.done());
    ASSERT_EQ(region->gate.pins(), 1U);
  }
  // What the engine does: retire, tell the server, wait for pins.
  void deregister() {
    rig.registry->retire(*region);
    rig.server->tick();
    ASSERT_TRUE(region->gate.wait_unpinned(Deadline::in(Duration::zero())));
    rig.registry->forget(*region);
  }
  void expect_in_step() {
    std::vector<std::byte> other(1000, std::byte{7});
    const auto next_region = rig.add_region(other);
    TestRequest next;
    prepare(next, Direction::kRead, {{local.data(), 0, other.size(), 0}}, {ref_of(*next_region)});
    rig.channel->post(next);
    rig.finish(next);
    EXPECT_TRUE(next.status.ok()) << next.status.to_string();
    EXPECT_TRUE(std::equal(other.begin(), other.end(), local.begin()));
  }

  StreamRig rig{4096, std::get<1>(GetParam())};
  std::vector<std::byte> local;
  std::vector<std::byte> remote;
  SplitMix64 random;
  std::shared_ptr<memory::RegionRecord> region;
};

// With 600 KiB the last data frame is under way from the beginning, and the good news stands
// behind it already; it must not be told.
INSTANTIATE_TEST_SUITE_P(Sizes, StreamRetireTest,
                         testing::Combine(testing::Values(600 << 10, 5 << 20),
                                          testing::Values(RigKind::kPlain, RigKind::kChecked)));
INSTANTIATE_TEST_SUITE_P(Staged, StreamRetireTest,
                         testing::Values(std::tuple(5 << 20, RigKind::kStaged)));

TEST_P(StreamRetireTest, AReadEndsSupersededAndTheRegionIsFreeAtOnce) {
  std::fill(remote.begin(), remote.end(), std::byte{0x11});
  std::fill(local.begin(), local.end(), std::byte{0x22});
  TestRequest request;
  ASSERT_NO_FATAL_FAILURE(begin(request, Direction::kRead, 6));
  ASSERT_NO_FATAL_FAILURE(deregister());
  std::fill(remote.begin(), remote.end(), std::byte{0xee});  // It is somebody else's now.
  rig.finish(request);
  EXPECT_EQ(std::count(local.begin(), local.end(), std::byte{0xee}), 0);
  EXPECT_EQ(request.status.reason(), Reason::kSuperseded) << request.status.to_string();
  EXPECT_EQ(rig.metrics.last_failure, Reason::kSuperseded);
  expect_in_step();
}

TEST_P(StreamRetireTest, AWriteEndsSupersededAndTheRegionIsFreeAtOnce) {
  TestRequest request;
  ASSERT_NO_FATAL_FAILURE(begin(request, Direction::kWrite, 6));
  ASSERT_NO_FATAL_FAILURE(deregister());
  std::fill(remote.begin(), remote.end(), std::byte{0xee});
  rig.finish(request);
  EXPECT_EQ(request.status.reason(), Reason::kSuperseded) << request.status.to_string();
  const auto untouched = std::count(remote.begin(), remote.end(), std::byte{0xee});
  EXPECT_EQ(untouched, static_cast<ptrdiff_t>(remote.size()));
  expect_in_step();
}

TEST_P(StreamRetireTest, ARequestForAGenerationThatHasPassedIsSuperseded) {
  const RemoteRegionRef old = ref_of(*region);
  ASSERT_NO_FATAL_FAILURE(deregister());
  for (const Direction direction : {Direction::kRead, Direction::kWrite}) {
    const auto before = local;
    TestRequest request;
    prepare(request, direction, {{local.data(), 0, local.size(), 0}}, {old});
    rig.channel->post(request);
    rig.finish(request);
    EXPECT_EQ(request.status.code(),
              region->desc.generation == 0 ? Code::kNotRegistered : Code::kSuperseded)
        << request.status.to_string();
    EXPECT_TRUE(same_bytes(local, before));
  }
  expect_in_step();
}

TEST(StreamServingTest, GivesUpARequestWhoseDeadlineHasPassed) {
  StreamRig rig(4096);
  std::vector<std::byte> local(5 << 20);
  std::vector<std::byte> remote(5 << 20);
  const auto region = rig.add_region(remote);
  TestRequest request;
  prepare(request, Direction::kRead, {{local.data(), 0, local.size(), 0}}, {ref_of(*region)});
  request.deadline = Deadline::in(std::chrono::milliseconds(20));
  rig.channel->post(request);
  for (int i = 0; i < 6; ++i) rig.step();
  ASSERT_EQ(region->gate.pins(), 1U);
  // The initiator does not look at its clock here: it plays a stopped process.
  for (int i = 0; i < 10'000 && region->gate.pins() > 0; ++i) {
    rig.owner_poller->run_once(std::chrono::milliseconds(1));
    rig.server->tick();
  }
  EXPECT_EQ(region->gate.pins(), 0U);
  rig.finish(request);
  EXPECT_EQ(request.status.reason(), Reason::kTimedOut) << request.status.to_string();
}

}  // namespace
}  // namespace stagelink::transport
