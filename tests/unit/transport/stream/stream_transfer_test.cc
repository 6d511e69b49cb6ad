#include <algorithm>
#include <cstring>
#include <numeric>

#include <gtest/gtest.h>

#include "unit/transport/stream/stream_rig.h"

namespace stagelink::transport {
namespace {

// Two buffers cut into equal slots; a batch moves a random choice of slots to other slots.
struct Field {
  Field(size_t slot_bytes, size_t slots, uint64_t seed)
      : slot(slot_bytes), local(slot_bytes * slots), remote(slot_bytes * slots), random(seed) {
    fill_random(local, random);
    fill_random(remote, random);
  }
  std::vector<size_t> shuffled() {
    std::vector<size_t> order(local.size() / slot);
    std::iota(order.begin(), order.end(), size_t{0});
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    return order;
  }
  // Ranges of random sizes, some zero, each in a slot of its own on both sides.
  std::vector<CopyItem> ranges(size_t count, uint64_t remote_base, bool whole_slots) {
    const auto from = shuffled();
    const auto to = shuffled();
    std::vector<CopyItem> items;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t bytes = whole_slots ? slot : random.below(slot + 1);
      items.push_back({local.data() + to[i] * slot, remote_base + from[i] * slot, bytes, 0});
    }
    return items;
  }

  size_t slot;
  std::vector<std::byte> local;
  std::vector<std::byte> remote;
  SplitMix64 random;
};

void copy_expected(const Field& field, const std::vector<CopyItem>& items, uint64_t remote_base,
                   Direction direction, std::vector<std::byte>& local,
                   std::vector<std::byte>& remote) {
  for (const CopyItem& item : items) {
    if (item.bytes == 0) continue;
    std::byte* ours = local.data() + (item.local - field.local.data());
    std::byte* theirs = remote.data() + (item.remote - remote_base);
    if (direction == Direction::kRead) {
      std::memcpy(ours, theirs, item.bytes);
    } else {
      std::memcpy(theirs, ours, item.bytes);
    }
  }
}

struct Shape {
  const char* name;
  size_t slot_bytes;
  size_t slots;
  size_t ranges;
  bool whole_slots;
  int send_buffer;
};

class StreamTransferTest
    : public testing::TestWithParam<std::tuple<Shape, Direction, bool /* by address */, RigKind>> {
};

TEST_P(StreamTransferTest, MovesExactlyTheBytesOfItsRanges) {
  const auto [shape, direction, by_address, kind] = GetParam();
  const uint64_t seed = random_u64();
  SCOPED_TRACE("seed " + std::to_string(seed));
  StreamRig rig(shape.send_buffer, kind);
  Field field(shape.slot_bytes, shape.slots, seed);
  const auto region = rig.add_region(field.remote);
  const uint64_t base = by_address ? region->desc.address : 0;
  for (int round = 0; round < 4; ++round) {
    auto items = field.ranges(shape.ranges, base, shape.whole_slots);
    auto local = field.local;
    auto remote = field.remote;
    copy_expected(field, items, base, direction, local, remote);
    std::vector<RemoteRegionRef> regions;
    if (!by_address) regions.push_back(ref_of(*region));
    TestRequest request;
    prepare(request, direction, std::move(items), std::move(regions));
    rig.channel->post(request);
    rig.finish(request);
    ASSERT_TRUE(request.status.ok()) << request.status.to_string();
    ASSERT_TRUE(field.local == local);
    ASSERT_TRUE(field.remote == remote);
  }
  EXPECT_FALSE(rig.lost.has_value());
  rig.settle();
  EXPECT_EQ(region->gate.pins(), 0U);
}

std::string name_of(const testing::TestParamInfo<StreamTransferTest::ParamType>& test) {
  const auto& [shape, direction, by_address, kind] = test.param;
  return std::string(shape.name) + (direction == Direction::kRead ? "Read" : "Write") +
         (by_address ? "ByAddress" : "ByRegion") + rig_name(kind);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, StreamTransferTest,
    testing::Combine(testing::Values(Shape{"Tiny", 8, 4, 1, true, 0},
                                     Shape{"Many256", 256, 8192, 4096, true, 0},
                                     Shape{"RandomSizes", 5000, 512, 300, false, 0},
                                     Shape{"Large", 3 << 20, 4, 3, true, 0},
                                     Shape{"SmallSendBuffer", 5000, 512, 300, false, 4096}),
                     testing::Values(Direction::kRead, Direction::kWrite), testing::Bool(),
                     testing::Values(RigKind::kPlain, RigKind::kChecked, RigKind::kStaged)),
    name_of);

TEST(StreamChannelTest, MovesARangeOf64MiB) {
  StreamRig rig;
  Field field(64 << 20, 1, 11);
  const auto region = rig.add_region(field.remote);
  TestRequest request;
  prepare(request, Direction::kRead, {{field.local.data(), 0, field.local.size(), 0}},
          {ref_of(*region)});
  rig.channel->post(request);
  rig.finish(request);
  ASSERT_TRUE(request.status.ok()) << request.status.to_string();
  EXPECT_TRUE(same_bytes(field.local, field.remote));
}

TEST(StreamChannelTest, AnEmptyBatchAndZeroRangesSucceedAndMoveNothing) {
  StreamRig rig;
  Field field(64, 4, 12);
  const auto region = rig.add_region(field.remote);
  const auto before = field.local;
  for (const Direction direction : {Direction::kRead, Direction::kWrite}) {
    TestRequest none;
    prepare(none, direction, {}, {ref_of(*region)});
    TestRequest zeros;
    prepare(zeros, direction,
            {{field.local.data(), 0, 0, 0}, {field.local.data(), field.remote.size(), 0, 0}},
            {ref_of(*region)});
    rig.channel->post(none);
    rig.channel->post(zeros);
    rig.finish(none);
    rig.finish(zeros);
    EXPECT_TRUE(none.status.ok()) << none.status.to_string();
    EXPECT_TRUE(zeros.status.ok()) << zeros.status.to_string();
  }
  EXPECT_TRUE(field.local == before);
}

TEST(StreamChannelTest, ServesRangesOfSeveralRegionsInOneBatch) {
  StreamRig rig;
  Field a(4096, 16, 13);
  Field b(4096, 16, 14);
  const auto region_a = rig.add_region(a.remote);
  const auto region_b = rig.add_region(b.remote);
  TestRequest request;
  // The region in the middle is not used, and must not be asked for: it does not exist.
  prepare(request, Direction::kRead,
          {{a.local.data(), 0, 4096, 0},
           {b.local.data(), 8192, 100, 2},
           {a.local.data() + 4096, 5, 7, 0}},
          {ref_of(*region_a), {77, 1}, ref_of(*region_b)});
  rig.channel->post(request);
  rig.finish(request);
  ASSERT_TRUE(request.status.ok()) << request.status.to_string();
  EXPECT_EQ(std::memcmp(a.local.data(), a.remote.data(), 4096), 0);
  EXPECT_EQ(std::memcmp(b.local.data(), b.remote.data() + 8192, 100), 0);
  EXPECT_EQ(std::memcmp(a.local.data() + 4096, a.remote.data() + 5, 7), 0);
}

TEST(StreamChannelTest, ManyRequestsInBothDirectionsAreUnderWayAtOnce) {
  const uint64_t seed = random_u64();
  SCOPED_TRACE("seed " + std::to_string(seed));
  StreamRig rig;
  constexpr size_t kRequests = 100;  // Far more than kMaxInFlight.
  std::vector<std::unique_ptr<Field>> fields;
  std::vector<std::shared_ptr<memory::RegionRecord>> regions;
  std::vector<std::unique_ptr<TestRequest>> requests;
  for (size_t i = 0; i < kRequests; ++i) {
    fields.push_back(std::make_unique<Field>(1000, 64, seed + i));
    regions.push_back(rig.add_region(fields[i]->remote));
    requests.push_back(std::make_unique<TestRequest>());
    Field& field = *fields[i];
    const auto direction = i % 3 == 0 ? Direction::kWrite : Direction::kRead;
    prepare(*requests[i], direction, field.ranges(64, 0, true), {ref_of(*regions[i])});
    rig.channel->post(*requests[i]);
  }
  for (size_t i = 0; i < kRequests; ++i) {
    rig.finish(*requests[i]);
    ASSERT_TRUE(requests[i]->status.ok()) << i << ": " << requests[i]->status.to_string();
    for (const CopyItem& item : requests[i]->held) {
      ASSERT_EQ(std::memcmp(item.local, fields[i]->remote.data() + item.remote, item.bytes), 0);
    }
  }
}

TEST(StreamChannelTest, ARequestMayBePostedAgainInItsOwnEnd) {
  StreamRig rig;
  Field field(4096, 4, 15);
  const auto region = rig.add_region(field.remote);
  TestRequest request;
  prepare(request, Direction::kRead, {{field.local.data(), 0, 16384, 0}}, {ref_of(*region)});
  int rounds = 0;
  request.then = [&] {
    if (++rounds < 50) rig.channel->post(request);
  };
  rig.channel->post(request);
  for (int i = 0; i < 100000 && rounds < 50; ++i) rig.step();
  EXPECT_EQ(rounds, 50);
  EXPECT_TRUE(same_bytes(field.local, field.remote));
}

TEST(StreamChannelTest, ABatchNeedsFewSystemCalls) {
  StreamRig rig;
  Field field(4096, 8192, 16);
  const auto region = rig.add_region(field.remote);
  TestRequest request;
  prepare(request, Direction::kRead, field.ranges(4096, 0, true), {ref_of(*region)});
  rig.channel->post(request);
  rig.finish(request);
  ASSERT_TRUE(request.status.ok());
  // 16 MiB in 4096 ranges. A system call for each range would be 4096 of them.
  EXPECT_LT(rig.channel->socket_calls(), 400U);
}

TEST(StreamChannelTest, ABatchBeyondTheBoundOfOneRequestIsRefused) {
  StreamRig rig;
  std::vector<std::byte> memory(16);
  const auto region = rig.add_region(memory);
  const size_t most =
      (wire::kMaxBatchBytes - wire::batch_header_bytes(1, 0)) / wire::kWireRangeBytes;
  for (const size_t count : {most, most + 1}) {
    std::vector<CopyItem> items(count, {memory.data(), 8, 0, 0});
    items.front().bytes = 1;  // So that what follows does not continue it.
    for (size_t i = 0; i < count; i += 2) items[i].remote = 1;
    TestRequest request;
    prepare(request, Direction::kRead, std::move(items), {ref_of(*region)});
    rig.channel->post(request);
    rig.finish(request);
    EXPECT_EQ(request.status.reason(), count == most ? Reason::kOk : Reason::kTooManyRanges)
        << request.status.to_string();
  }
}

}  // namespace
}  // namespace stagelink::transport
