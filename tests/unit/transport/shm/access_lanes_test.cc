#include "transport/shm/access_lanes.h"

#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "transport/shm/shm_transport.h"
#include "unit/transport/shm/page_memory.h"

namespace stagelink::transport {
namespace {

class AccessLanesTest : public ::testing::Test {
 protected:
  AccessLanesTest() { page_.table().epoch.store(1); }

  PageMemory page_;
  AccessLanes lanes_{page_.page(), page_.table()};
};

TEST_F(AccessLanesTest, EveryLaneCanBeClaimedOnce) {
  std::vector<uint32_t> claimed;
  while (const auto lane = lanes_.claim()) claimed.push_back(*lane);
  EXPECT_EQ(claimed.size(), wire::kLaneCount);
  lanes_.enter(claimed[5], 1);
  lanes_.leave(claimed[5]);
  EXPECT_EQ(lanes_.claim(), claimed[5]);
  EXPECT_EQ(lanes_.claim(), std::nullopt);
}

TEST_F(AccessLanesTest, ReaderInsideShowsUntilItLeaves) {
  const uint32_t lane = *lanes_.claim();
  EXPECT_EQ(lane_inside(page_.page(), 3, 2), std::nullopt);
  lanes_.enter(lane, row_bit(3));
  EXPECT_EQ(lane_inside(page_.page(), 3, 2), lane);
  lanes_.leave(lane);
  EXPECT_EQ(lane_inside(page_.page(), 3, 2), std::nullopt);
}

TEST_F(AccessLanesTest, OnlyRowsOfTheMaskAreHeld) {
  const uint32_t lane = *lanes_.claim();
  lanes_.enter(lane, row_bit(3) | row_bit(70));
  EXPECT_TRUE(lane_inside(page_.page(), 3, 2));
  EXPECT_TRUE(lane_inside(page_.page(), 6, 2));  // 70 % 64: one bit for several rows.
  EXPECT_FALSE(lane_inside(page_.page(), 4, 2));
}

TEST_F(AccessLanesTest, ReaderOfTheNewEpochIsNotWaitedFor) {
  page_.table().epoch.store(5);
  const uint32_t lane = *lanes_.claim();
  lanes_.enter(lane, row_bit(0));
  EXPECT_FALSE(lane_inside(page_.page(), 0, 5));
  EXPECT_TRUE(lane_inside(page_.page(), 0, 6));
}

TEST_F(AccessLanesTest, LeavingTellsAWaitingOwner) {
  const uint32_t lane = *lanes_.claim();
  lanes_.enter(lane, 1);
  lanes_.leave(lane);
  EXPECT_EQ(page_.page().lanes[lane].wake.load(), 0U);  // Nobody waits: no call.
  page_.table().lane_waiters.store(1);
  const uint32_t again = *lanes_.claim();
  lanes_.enter(again, 1);
  lanes_.leave(again);
  EXPECT_EQ(page_.page().lanes[again].wake.load(), 1U);
}

// The protocol itself: an owner that passes the generation, waits for lanes and then writes, and
// readers whose successes may only hold what was there before. One mapping, for ThreadSanitizer.
TEST_F(AccessLanesTest, OwnerWritesOnlyWhenNoReaderCanSucceed) {
  wire::TableEntry row{};
  row.state.store(1 << 1 | 1);
  std::atomic<uint64_t> value{1};  // What the region holds: its generation.
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> wrong{0};
  std::atomic<uint64_t> seen{0};
  const auto reader = [&] {
    while (!stop.load()) {
      const auto lane = lanes_.claim();
      if (!lane) continue;
      const uint64_t state = row.state.load();
      lanes_.enter(*lane, row_bit(0));
      if ((state & 1) != 0 && row.state.load() == state) {
        const uint64_t read = value.load(std::memory_order_relaxed);
        if (row.state.load() == state) {
          ++seen;
          if (read != state >> 1) ++wrong;
        }
      }
      lanes_.leave(*lane);
    }
  };
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) readers.emplace_back(reader);
  for (uint64_t generation = 1; generation < 3000 || seen.load() < 100; ++generation) {
    row.state.store((generation + 1) << 1);  // Passed, not live.
    const uint64_t epoch = page_.table().epoch.fetch_add(1) + 1;
    while (lane_inside(page_.page(), 0, epoch)) std::this_thread::yield();
    value.store(~uint64_t{0}, std::memory_order_relaxed);  // Freed: anything may be here.
    value.store(generation + 1, std::memory_order_relaxed);
    row.state.store((generation + 1) << 1 | 1);
  }
  stop.store(true);
  for (std::thread& thread : readers) thread.join();
  EXPECT_EQ(wrong.load(), 0U);
}

class ShmTransportTest : public AccessLanesTest {
 protected:
  ShmTransportTest() {
    row_.state.store(kLive);
    kernel_ = memory::pick_copy_kernel(0);
  }
  ShmTransport transport() { return ShmTransport(lanes_, lost_, kernel_, {{&row_, kLive, 0}}); }
  CopyItem item() {
    return {local_.data(), reinterpret_cast<uint64_t>(remote_.data()), local_.size(), 0, 0};
  }

  static constexpr uint64_t kLive = 4 << 1 | 1;
  wire::TableEntry row_{};
  std::atomic<bool> lost_{false};
  memory::CopyKernel kernel_;
  std::vector<std::byte> local_ = std::vector<std::byte>(1000, std::byte{0xEE});
  std::vector<std::byte> remote_ = std::vector<std::byte>(1000, std::byte{7});
};

TEST_F(ShmTransportTest, CopiesBothWays) {
  ShmTransport shm = transport();
  const CopyItem one = item();
  ASSERT_TRUE(shm.copy(std::span(&one, 1), Direction::kRead).ok());
  EXPECT_EQ(local_, remote_);
  local_.assign(1000, std::byte{9});
  ASSERT_TRUE(shm.copy(std::span(&one, 1), Direction::kWrite).ok());
  EXPECT_EQ(remote_, std::vector<std::byte>(1000, std::byte{9}));
}

TEST_F(ShmTransportTest, PassedGenerationMovesNothing) {
  ShmTransport shm = transport();
  row_.state.store(5 << 1);
  const CopyItem one = item();
  EXPECT_EQ(shm.copy(std::span(&one, 1), Direction::kRead).reason(), Reason::kSuperseded);
  EXPECT_EQ(local_, std::vector<std::byte>(1000, std::byte{0xEE}));
  EXPECT_FALSE(lane_inside(page_.page(), 0, 2));
}

TEST_F(ShmTransportTest, LostPeerIsNoSuccess) {
  ShmTransport shm = transport();
  lost_.store(true);
  const CopyItem one = item();
  EXPECT_EQ(shm.copy(std::span(&one, 1), Direction::kRead).code(), Code::kPeerLost);
}

TEST_F(ShmTransportTest, NoFreeLaneIsBusyInTheEnd) {
  ShmTransport shm = transport();
  while (lanes_.claim()) {
  }
  const CopyItem one = item();
  EXPECT_EQ(shm.copy(std::span(&one, 1), Direction::kRead).code(), Code::kBusy);
}

}  // namespace
}  // namespace stagelink::transport
