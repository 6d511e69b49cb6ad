#include "engine/batch/plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include <gtest/gtest.h>

#include "base/random.h"

namespace stagelink::engine {
namespace {

using transport::CopyItem;
using transport::Direction;
using transport::TransportKind;

// Two local and three remote regions; of the remote ones, the last is reached by socket. Nothing is
// dereferenced but the mappings' addresses.
class PlanTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBytes = 1 << 20;

  PlanTest() {
    memory_.resize(2 * kBytes);
    for (size_t i = 0; i < 2; ++i) {
      auto record = std::make_shared<memory::RegionRecord>();
      view_.locals.push_back({record, memory_.data() + i * kBytes, kBytes});
    }
    for (uint32_t i = 0; i < 3; ++i) {
      RemoteRegion remote;
      remote.desc.index = i;
      remote.desc.bytes = kBytes;
      remote.desc.address = (uint64_t{i} + 1) << 32;
      remote.route = {TransportKind::kStream, "test"};
      view_.remotes.push_back(remote);
    }
  }
  Status plan(const RangeList& ranges, Direction direction = Direction::kRead) {
    return plan_ranges(view_, ranges, direction, limits_, plan_);
  }

  // Where each byte comes from, for the naive model: local address -> (remote index, offset).
  struct Moves {
    std::map<const std::byte*, std::pair<uint32_t, uint64_t>> bytes;
    void add(const std::byte* local, uint32_t remote, uint64_t offset, uint64_t size) {
      for (uint64_t i = 0; i < size; ++i) bytes[local + i] = {remote, offset + i};
    }
    friend bool operator==(const Moves&, const Moves&) = default;
  };
  Moves moves_of_plan() const {
    Moves moves;
    for (const CopyItem& item : plan_.posted_items) {
      moves.add(item.local, item.remote_index, item.remote, item.bytes);
    }
    return moves;
  }

  std::vector<std::byte> memory_;
  SessionView view_;
  PlanLimits limits_{.slice_bytes = 64 << 10, .max_ranges = 10'000};
  Plan plan_;
};

TEST_F(PlanTest, MovesTheSameBytesAsTheNaiveModel) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SplitMix64 random(seed);
    std::vector<uint64_t> local, remote, sizes;
    std::vector<uint32_t> local_regions, remote_regions;
    Moves expected;
    uint64_t total = 0;
    uint64_t at = 0;
    const uint64_t count = random.below(60);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t size = random.below(4) == 0 ? 0 : random.below(300);
      // Often a neighbour of the range before, on one side or on both.
      const uint64_t gap = random.below(3) == 0 ? random.below(50) : 0;
      const auto from = static_cast<uint32_t>(random.below(8) == 0 ? random.below(3) : 1);
      const uint64_t offset = random.below(5) == 0 ? random.below(kBytes - 300) : at + 4096;
      local.push_back(at + gap), remote.push_back(offset), sizes.push_back(size);
      local_regions.push_back(0), remote_regions.push_back(from);
      expected.add(memory_.data() + at + gap, from, offset, size);
      at += gap + size;
      total += size;
    }
    ASSERT_TRUE(plan({local, remote, sizes, local_regions, remote_regions}).ok());
    EXPECT_EQ(plan_.posted_bytes + plan_.copy_bytes, total) << "seed " << seed;
    EXPECT_EQ(moves_of_plan(), expected) << "seed " << seed;
    EXPECT_LE(plan_.posted_items.size(), count);
  }
}

TEST_F(PlanTest, NeighboursOnBothSidesBecomeOneItem) {
  std::vector<uint64_t> offsets(100), sizes(100, 64);
  for (uint64_t i = 0; i < 100; ++i) offsets[i] = i * 64;
  ASSERT_TRUE(plan({offsets, offsets, sizes, {}, {}}).ok());
  ASSERT_EQ(plan_.posted_items.size(), 1U);
  EXPECT_EQ(plan_.posted_items[0].bytes, 6400U);
}

TEST_F(PlanTest, NeighboursOnOneSideStayApart) {
  const std::vector<uint64_t> local = {0, 64, 128};
  const std::vector<uint64_t> remote = {0, 65, 130};
  const std::vector<uint64_t> sizes(3, 64);
  ASSERT_TRUE(plan({local, remote, sizes, {}, {}}).ok());
  EXPECT_EQ(plan_.posted_items.size(), 3U);
}

TEST_F(PlanTest, NeighboursInDifferentRegionsStayApart) {
  const std::vector<uint64_t> offsets = {0, 64};
  const std::vector<uint64_t> sizes(2, 64);
  const std::vector<uint32_t> remote_regions = {0, 1};
  ASSERT_TRUE(plan({offsets, offsets, sizes, {}, remote_regions}).ok());
  EXPECT_EQ(plan_.posted_items.size(), 2U);
}

TEST_F(PlanTest, LocalRegionsAreNamedOnceEach) {
  const std::vector<uint64_t> offsets = {0, 100, 200, 300};
  const std::vector<uint64_t> sizes(4, 8);
  const std::vector<uint32_t> local_regions = {1, 0, 1, 0};
  ASSERT_TRUE(plan({offsets, offsets, sizes, local_regions, {}}).ok());
  EXPECT_EQ(plan_.locals_used, (std::vector<uint32_t>{1, 0}));
}

TEST_F(PlanTest, ErrorNamesTheRange) {
  const std::vector<uint64_t> offsets = {0, 100, kBytes - 7};
  const std::vector<uint64_t> sizes(3, 8);
  const Status status = plan({offsets, offsets, sizes, {}, {}});
  EXPECT_EQ(status.reason(), Reason::kOutOfBounds);
  EXPECT_NE(status.message().find("range 2"), std::string_view::npos) << status.message();
}

TEST_F(PlanTest, GreatestRegionIndexIsOutOfBoundsOnEitherSide) {
  const std::vector<uint64_t> zero = {0};
  const std::vector<uint64_t> size = {8};
  const std::vector<uint32_t> greatest = {~uint32_t{0}};
  EXPECT_EQ(plan({zero, zero, size, greatest, {}}).reason(), Reason::kOutOfBounds);
  EXPECT_EQ(plan({zero, zero, size, {}, greatest}).reason(), Reason::kOutOfBounds);
}

TEST_F(PlanTest, GoneRegionIsSupersededAndReadOnlyRefusesWrites) {
  const std::vector<uint64_t> zero = {0};
  const std::vector<uint64_t> size = {8};
  view_.remotes[0].desc.access = Access::kReadOnly;
  EXPECT_TRUE(plan({zero, zero, size, {}, {}}).ok());
  EXPECT_EQ(plan({zero, zero, size, {}, {}}, Direction::kWrite).reason(), Reason::kReadOnly);
  view_.remotes[0].gone = true;
  EXPECT_EQ(plan({zero, zero, size, {}, {}}).reason(), Reason::kSuperseded);
}

// Three regions reached by cma, and by socket if runs are short.
class CmaPlanTest : public PlanTest {
 protected:
  CmaPlanTest() {
    for (RemoteRegion& remote : view_.remotes) {
      remote.route = {TransportKind::kCma, "test", TransportKind::kStream};
    }
    limits_.cma_min_run = 4096;
    limits_.max_ranges = 100'000;
  }
  // `count` ranges of `bytes`, none the neighbour of another.
  Status plan_scattered(size_t count, uint64_t bytes, Direction direction = Direction::kRead) {
    std::vector<uint64_t> offsets(count), sizes(count, bytes);
    for (size_t i = 0; i < count; ++i) offsets[i] = i * (bytes + 8) % (kBytes - bytes);
    return plan({offsets, offsets, sizes, {}, {}}, direction);
  }
  // Every item in one slice, slices within their bounds, and nothing lost.
  void expect_slices_hold(uint64_t total) const {
    ASSERT_EQ(plan_.slice_starts.front(), 0U);
    ASSERT_EQ(plan_.slice_starts.back(), plan_.copy_items.size());
    uint64_t sum = 0;
    for (uint32_t slice = 0; slice < plan_.slices(); ++slice) {
      uint64_t bytes = 0;
      ASSERT_LT(plan_.slice_starts[slice], plan_.slice_starts[slice + 1]);
      ASSERT_LE(plan_.slice_starts[slice + 1] - plan_.slice_starts[slice], 1023U);
      for (uint32_t i = plan_.slice_starts[slice]; i < plan_.slice_starts[slice + 1]; ++i) {
        bytes += plan_.copy_items[i].bytes;
      }
      EXPECT_LE(bytes, limits_.slice_bytes * kCmaSliceFactor);
      sum += bytes;
    }
    EXPECT_EQ(sum, total);
    EXPECT_EQ(plan_.copy_bytes, total);
  }
};

TEST_F(CmaPlanTest, MeanMergedRunDecidesForTheBatch) {
  ASSERT_TRUE(plan_scattered(10, 4096).ok());
  EXPECT_EQ(plan_.cma_bytes, 40960U);
  EXPECT_TRUE(plan_.posted_items.empty());
  ASSERT_TRUE(plan_scattered(10, 4095).ok());
  EXPECT_EQ(plan_.cma_bytes, 0U);
  EXPECT_TRUE(plan_.copy_items.empty());
  EXPECT_EQ(plan_.slices(), 0U);
  EXPECT_EQ(plan_.posted_bytes, 40950U);
}

TEST_F(CmaPlanTest, NeighboursCountAsOneRun) {
  std::vector<uint64_t> offsets(100), sizes(100, 64);
  for (uint64_t i = 0; i < 100; ++i) offsets[i] = i * 64;
  ASSERT_TRUE(plan({offsets, offsets, sizes, {}, {}}).ok());
  EXPECT_EQ(plan_.cma_bytes, 6400U);
  ASSERT_EQ(plan_.copy_items.size(), 1U);
  EXPECT_EQ(plan_.copy_items[0].remote, view_.remotes[0].desc.address);
}

TEST_F(CmaPlanTest, ShortRunsGoToTheSocketByOffsetOrByAddress) {
  const std::vector<uint64_t> local = {0, 100}, sizes = {8, 8};
  const std::vector<uint32_t> regions = {1, 0};
  ASSERT_TRUE(plan({local, local, sizes, {}, regions}).ok());
  ASSERT_EQ(plan_.posted_items.size(), 2U);
  EXPECT_EQ(plan_.posted_items[0].remote_index, 1U);
  EXPECT_EQ(plan_.posted_items[1].remote, 100U);
  view_.by_address = true;
  view_.index_addresses();
  const uint64_t base = view_.remotes[1].desc.address;
  const std::vector<uint64_t> addresses = {base, base + 100};
  ASSERT_TRUE(plan({local, addresses, sizes, {}, {}}).ok());
  ASSERT_EQ(plan_.posted_items.size(), 2U);
  EXPECT_EQ(plan_.posted_items[1].remote_index, transport::kByAddress);
  EXPECT_EQ(plan_.posted_items[1].remote, base + 100);
}

TEST_F(CmaPlanTest, ASliceIsOneCall) {
  limits_.slice_bytes = 256 << 10;
  ASSERT_TRUE(plan_scattered(1023, 4096).ok());
  EXPECT_EQ(plan_.slices(), 1U);
  ASSERT_TRUE(plan_scattered(1024, 4096).ok());
  EXPECT_EQ(plan_.slices(), 2U);
  ASSERT_TRUE(plan_scattered(4096, 4096).ok());
  EXPECT_EQ(plan_.slices(), 5U);
  expect_slices_hold(uint64_t{4096} * 4096);
  limits_.cma_min_run = 0;
  ASSERT_TRUE(plan_scattered(4096, 256).ok());
  EXPECT_EQ(plan_.slices(), 5U);
}

TEST_F(CmaPlanTest, LargeRunsAreCutAtTheSliceBound) {
  limits_.slice_bytes = 8192;
  for (const uint64_t bytes : {uint64_t{131072}, uint64_t{131073}, kBytes}) {
    const std::vector<uint64_t> zero = {0}, size = {bytes};
    ASSERT_TRUE(plan({zero, zero, size, {}, {}}).ok());
    EXPECT_EQ(plan_.slices(), (bytes + 131071) / 131072);
    expect_slices_hold(bytes);
  }
}

TEST_F(CmaPlanTest, WithoutASocketShortRunsAreCopiedToo) {
  for (RemoteRegion& remote : view_.remotes) remote.route.short_runs = std::nullopt;
  ASSERT_TRUE(plan_scattered(100, 8).ok());
  EXPECT_EQ(plan_.cma_bytes, 800U);
}

TEST_F(CmaPlanTest, OnceTheKernelRefusesTheSocketServes) {
  view_.cma = std::make_shared<transport::CmaOwner>(1, UniqueFd(), 0, wire::TableIdentity{});
  ASSERT_TRUE(plan_scattered(1, 65536).ok());
  EXPECT_EQ(plan_.cma_bytes, 65536U);
  view_.cma->refuse();
  ASSERT_TRUE(plan_scattered(1, 65536).ok());
  EXPECT_EQ(plan_.posted_bytes, 65536U);
  view_.remotes[0].route.short_runs = std::nullopt;
  EXPECT_EQ(plan_scattered(1, 65536).reason(), Reason::kUnreachable);
}

// Regions that go by socket anyhow, in the same batch.
TEST_F(CmaPlanTest, EachRegionGoesItsOwnWay) {
  view_.remotes[2].route = {TransportKind::kStream, "test"};
  const std::vector<uint64_t> local = {0, 8192, 16384}, remote = {0, 0, 8192};
  const std::vector<uint64_t> sizes = {4096, 64, 4096};
  const std::vector<uint32_t> regions = {0, 2, 1};
  ASSERT_TRUE(plan({local, remote, sizes, {}, regions}).ok());
  EXPECT_EQ(plan_.cma_bytes, 8192U);
  EXPECT_EQ(plan_.posted_bytes, 64U);
  ASSERT_EQ(plan_.copy_items.size(), 2U);
  EXPECT_EQ(plan_.copy_items[1].remote, view_.remotes[1].desc.address + 8192);
}

TEST_F(PlanTest, StridedEqualsItsList) {
  SplitMix64 random(5);
  for (int round = 0; round < 100; ++round) {
    const StridedRange range{.local_offset = random.below(1000),
                             .remote_offset = random.below(1000),
                             .bytes = random.below(100),
                             .count = random.below(200),
                             .local_stride = 100 + random.below(500),
                             .remote_stride = 100 + random.below(500),
                             .remote_region = 2};
    ASSERT_TRUE(plan_strided(view_, range, Direction::kRead, limits_, plan_).ok());
    const Moves strided = moves_of_plan();
    std::vector<uint64_t> local, remote;
    const std::vector<uint64_t> sizes(range.count, range.bytes);
    const std::vector<uint32_t> remote_regions(range.count, 2);
    for (uint64_t i = 0; i < range.count; ++i) {
      local.push_back(range.local_offset + i * range.local_stride);
      remote.push_back(range.remote_offset + i * range.remote_stride);
    }
    ASSERT_TRUE(plan({local, remote, sizes, {}, remote_regions}).ok());
    EXPECT_EQ(strided, moves_of_plan());
  }
}

// By address the innermost of overlapping registrations is as good as any: one that holds it all.
TEST_F(PlanTest, AddressesFindARegionThatHoldsTheWholeRange) {
  SplitMix64 random(9);
  for (int round = 0; round < 200; ++round) {
    SessionView view;
    for (uint32_t i = 0; i < 12; ++i) {
      RemoteRegion remote;
      remote.desc.address = 1000 + random.below(1000);
      remote.desc.bytes = 1 + random.below(500);
      remote.gone = random.below(6) == 0;
      view.remotes.push_back(remote);
    }
    view.index_addresses();
    for (int look = 0; look < 50; ++look) {
      const uint64_t address = 900 + random.below(1700);
      const uint64_t bytes = 1 + random.below(200);
      const auto holds = [&](const RemoteRegion& remote) {
        return !remote.gone && address >= remote.desc.address &&
               address + bytes <= remote.desc.address + remote.desc.bytes;
      };
      const auto found = view.find(address, bytes);
      const bool any = std::any_of(view.remotes.begin(), view.remotes.end(), holds);
      ASSERT_EQ(found.has_value(), any);
      ASSERT_TRUE(!found || holds(view.remotes[*found]));
    }
  }
}

}  // namespace
}  // namespace stagelink::engine
