// Reads and writes between two processes, every byte looked at.

#include <algorithm>
#include <numeric>

#include "integration/support/engine_test.h"
#include "integration/support/ranges.h"

namespace stagelink::test {
namespace {

constexpr uint64_t kMiB = 1 << 20;

class TransferTest : public PathTest {
 protected:
  Link link(uint64_t bytes) const {
    return Link(reader_options("reader"), options("owner"), path(), bytes);
  }
};
SL_FOR_BOTH_PATHS(TransferTest);

// `count` ranges that do not overlap, of random sizes and places, in random order.
Ranges scattered(uint64_t seed, uint64_t slot, uint64_t count) {
  SplitMix64 random(seed);
  std::vector<uint64_t> places(count);
  std::iota(places.begin(), places.end(), 0);
  const auto shuffle = [&] {
    for (uint64_t i = count; i > 1; --i) std::swap(places[i - 1], places[random.below(i)]);
    return places;
  };
  const auto from = shuffle();
  const auto to = shuffle();
  Ranges ranges;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t size = random.below(slot + 1);
    ranges.add(to[i] * slot + random.below(slot - size + 1),
               from[i] * slot + random.below(slot - size + 1), size);
  }
  return ranges;
}

// After a read of `ranges` from memory with the pattern of `seed`: every byte, also those between.
void expect_read(const PrivateMemory& memory, const Ranges& ranges, uint64_t seed) {
  std::vector<std::byte> expected(memory.size(), kUntouched);
  for (size_t i = 0; i < ranges.sizes.size(); ++i) {
    if (ranges.sizes[i] == 0) continue;
    fill_pattern(std::span(expected).subspan(ranges.local[i], ranges.sizes[i]), seed,
                 ranges.remote[i]);
  }
  const auto different = std::mismatch(expected.begin(), expected.end(), memory.bytes().begin());
  EXPECT_EQ(different.first - expected.begin(), static_cast<ptrdiff_t>(expected.size()));
  EXPECT_TRUE(memory.canaries_intact());
}

TEST_P(TransferTest, ReadBringsEveryByteOfAWholeRegion) {
  Link link = this->link(8 * kMiB + 24);
  link.owner.fill(link.remote, seed());
  Transfer transfer = must(link.session.read(whole(8 * kMiB + 24)));
  ASSERT_OK(transfer.wait(10s));
  EXPECT_EQ(transfer.bytes(), 8 * kMiB + 24);
  EXPECT_EQ(transfer.poll(), TransferPhase::kSucceeded);
  EXPECT_EQ(first_wrong(link.memory.bytes(), seed()), std::nullopt);
  EXPECT_TRUE(link.memory.canaries_intact());
}

TEST_P(TransferTest, WriteTakesEveryByteToTheOwner) {
  Link link = this->link(8 * kMiB + 24);
  link.owner.set(link.remote, kUntouched);
  fill_pattern(link.memory.bytes(), seed());
  Ranges ranges;
  ranges.add(100, 4096, 3 * kMiB + 5);
  ASSERT_OK(must(link.session.write(ranges.list())).wait(10s));
  EXPECT_EQ(link.owner.first_not(link.remote, kUntouched, 0, 4096), kNone);
  EXPECT_EQ(link.owner.first_wrong(link.remote, seed(), 4096, 3 * kMiB + 5, 100), kNone);
  EXPECT_EQ(link.owner.first_not(link.remote, kUntouched, 4096 + 3 * kMiB + 5), kNone);
}

TEST_P(TransferTest, ScatteredRangesLandInTheirPlacesAndNowhereElse) {
  Link link = this->link(4 * kMiB);
  link.owner.fill(link.remote, seed());
  for (const uint64_t slot : {64, 1000, 4096, 65536}) {
    link.memory.reset();
    const Ranges ranges = scattered(seed() + slot, slot, 4 * kMiB / slot);
    ASSERT_OK(must(link.session.read(ranges.list())).wait(20s)) << "slot " << slot;
    expect_read(link.memory, ranges, seed());
  }
}

TEST_P(TransferTest, ScatteredWritesLandInTheirPlaces) {
  Link link = this->link(kMiB);
  link.owner.set(link.remote, kUntouched);
  fill_pattern(link.memory.bytes(), seed());
  const Ranges ranges = scattered(seed(), 4096, kMiB / 4096);
  ASSERT_OK(must(link.session.write(ranges.list())).wait(20s));
  for (size_t i = 0; i < ranges.sizes.size(); ++i) {
    if (ranges.sizes[i] == 0) continue;
    ASSERT_EQ(link.owner.first_wrong(link.remote, seed(), ranges.remote[i], ranges.sizes[i],
                                     ranges.local[i]),
              kNone)
        << "range " << i;
  }
}

TEST_P(TransferTest, StridedFormEqualsTheListOfItsPieces) {
  Link link = this->link(kMiB);
  link.owner.fill(link.remote, seed());
  const StridedRange strided{.local_offset = 24,
                             .remote_offset = 100,
                             .bytes = 700,
                             .count = 300,
                             .local_stride = 1024,
                             .remote_stride = 3000};
  Ranges ranges;
  for (uint64_t i = 0; i < 300; ++i) ranges.add(24 + i * 1024, 100 + i * 3000, 700);
  Transfer transfer = must(link.session.read(strided));
  ASSERT_OK(transfer.wait(10s));
  EXPECT_EQ(transfer.bytes(), 700U * 300U);
  expect_read(link.memory, ranges, seed());
}

TEST_P(TransferTest, NeighboursThatAreMergedMoveTheSameBytes) {
  Link link = this->link(kMiB);
  link.owner.fill(link.remote, seed());
  Ranges ranges;
  // Runs of neighbours on both sides, on one side only, and descending.
  for (uint64_t i = 0; i < 64; ++i) ranges.add(i * 512, 8192 + i * 512, 512);
  for (uint64_t i = 0; i < 64; ++i) ranges.add(65536 + i * 1024, 65536 + i * 512, 512);
  for (uint64_t i = 64; i > 0; --i) ranges.add(262144 + i * 512, 262144 + i * 512, 512);
  ASSERT_OK(must(link.session.read(ranges.list())).wait(10s));
  expect_read(link.memory, ranges, seed());
}

// T37: zero sizes are allowed anywhere and move nothing.
TEST_P(TransferTest, ZeroLengthRangesMoveNothing) {
  Link link = this->link(65536);
  link.owner.fill(link.remote, seed());
  Ranges ranges;
  ranges.add(65536, 65536, 0);  // At the very end.
  ranges.add(128, 64, 100);
  ranges.add(0, 0, 0);
  ranges.add(4096, 4096, 64);
  ranges.add(~uint64_t{0}, ~uint64_t{0}, 0);
  ASSERT_OK(must(link.session.read(ranges.list())).wait(5s));
  expect_read(link.memory, ranges, seed());
}

// T37: an empty batch is complete at once, with one notification.
TEST_P(TransferTest, EmptyBatchSucceedsAtOnce) {
  Link link = this->link(4096);
  Transfer transfer = must(link.session.read(RangeList{}));
  EXPECT_EQ(transfer.poll(), TransferPhase::kSucceeded);
  EXPECT_OK(transfer.wait(Duration::zero()));
  EXPECT_EQ(transfer.bytes(), 0U);
  ASSERT_OK(link.peer.notify(bytes_of("empty"), transfer));
  const auto taken = link.owner.take(5s);
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(text_of(taken[0].payload), "empty");
  EXPECT_EQ(taken[0].outcome, Reason::kOk);
  EXPECT_TRUE(link.owner.take(Duration::zero()).empty());
  Transfer none = must(link.session.write(StridedRange{.bytes = 64, .count = 0}));
  EXPECT_EQ(none.poll(), TransferPhase::kSucceeded);
}

TEST_P(TransferTest, RegionIndicesChooseBothSides) {
  constexpr uint64_t kBytes = 64 << 10;
  OwnerProcess owner(options("owner"));
  std::vector<OwnedRegion> owned;
  std::vector<RegionDesc> descs;
  for (uint64_t i = 0; i < 3; ++i) {
    owned.push_back(make_region(owner, path(), kBytes));
    owner.fill(owned.back(), seed() + i);
    descs.push_back(owned.back().desc);
  }
  const auto engine = must(Engine::create(reader_options("reader")));
  const PrivateMemory first(kBytes);
  const PrivateMemory second(kBytes);
  const Region one = must(engine->register_memory(first.data(), kBytes));
  const Region two = must(engine->register_memory(second.data(), kBytes));
  const std::array<const Region*, 2> locals = {&one, &two};
  Peer peer = must(engine->connect(owner.descriptor()));
  Session session = must(peer.session(locals, descs));
  Ranges ranges;
  for (uint64_t i = 0; i < 60; ++i) {
    ranges.add(i * 1000, i * 1024, 1000);
    ranges.local_regions.push_back(static_cast<uint32_t>(i / 3 % 2));
    ranges.remote_regions.push_back(static_cast<uint32_t>(i % 3));
  }
  ASSERT_OK(must(session.read(ranges.list())).wait(10s));
  for (uint64_t i = 0; i < 60; ++i) {
    const PrivateMemory& to = i / 3 % 2 == 0 ? first : second;
    const PrivateMemory& other = i / 3 % 2 == 0 ? second : first;
    EXPECT_EQ(first_wrong(to.bytes().subspan(i * 1000, 1000), seed() + i % 3, i * 1024),
              std::nullopt);
    EXPECT_EQ(first_not(other.bytes().subspan(i * 1000, 1000), kUntouched), std::nullopt);
  }
}

TEST_P(TransferTest, AddressesOfTheOwnerNameItsMemory) {
  constexpr uint64_t kBytes = 256 << 10;
  Link link = this->link(kBytes);
  link.owner.fill(link.remote, seed());
  const std::array<const Region*, 1> own = {&link.local};
  Session session = must(link.peer.session_by_address(own));
  Ranges ranges;
  ranges.add(0, link.remote.desc.address, 4096);
  ranges.add(8192, link.remote.desc.address + kBytes - 100, 100);
  ranges.add(16384, link.remote.desc.address + 77, 70000);
  ASSERT_OK(must(session.read(ranges.list())).wait(10s));
  for (uint64_t& address : ranges.remote) address -= link.remote.desc.address;
  expect_read(link.memory, ranges, seed());

  // A region that is registered later is found by the same session.
  const OwnedRegion later = make_region(link.owner, path(), kBytes);
  link.owner.fill(later, seed() + 1);
  link.memory.reset();
  Ranges second;
  second.add(500, later.desc.address + 500, 30000);
  ASSERT_OK(must(session.read(second.list())).wait(10s));
  second.remote[0] -= later.desc.address;
  expect_read(link.memory, second, seed() + 1);
}

// T49: an address means registered memory or nothing.
TEST_P(TransferTest, AddressesOutsideEveryRegistrationAreRefused) {
  constexpr uint64_t kBytes = 64 << 10;
  Link link = this->link(kBytes);
  const uint64_t base = link.remote.desc.address;
  const std::array<const Region*, 1> own = {&link.local};
  Session session = must(link.peer.session_by_address(own));
  const auto read = [&](uint64_t address, uint64_t size) {
    Ranges ranges;
    ranges.add(0, address, size);
    auto transfer = session.read(ranges.list());
    return transfer.ok() ? transfer->wait(5s) : transfer.status();
  };
  EXPECT_OK(read(base, 8));
  EXPECT_OK(read(base + kBytes - 8, 8));
  EXPECT_REASON(Reason::kNotRegistered, read(base - 8, 8));
  EXPECT_REASON(Reason::kNotRegistered, read(base - 4, 8));
  EXPECT_REASON(Reason::kNotRegistered, read(base + kBytes - 8, 16));
  EXPECT_REASON(Reason::kNotRegistered, read(base + kBytes, 1));
  EXPECT_REASON(Reason::kNotRegistered, read(8, 8));
  EXPECT_REASON(Reason::kOverflow, read(~uint64_t{0} - 6, 8));
}

TEST_P(TransferTest, ReadOnlyRegionRefusesWritesAndServesReads) {
  OwnerProcess owner(options("owner"));
  const OwnedRegion remote = make_region(owner, path(), 8192, Access::kReadOnly);
  owner.fill(remote, seed());
  const auto engine = must(Engine::create(reader_options("reader")));
  const PrivateMemory memory(8192);
  const Region local = must(engine->register_memory(memory.data(), memory.size()));
  const std::array<const Region*, 1> own = {&local};
  Peer peer = must(engine->connect(owner.descriptor()));
  Session session = must(peer.session(own, std::span(&remote.desc, 1)));
  EXPECT_REASON(Reason::kReadOnly, session.write(whole(16)).status());
  ASSERT_OK(must(session.read(whole(8192))).wait(5s));
  EXPECT_EQ(first_wrong(memory.bytes(), seed()), std::nullopt);
  EXPECT_EQ(owner.first_wrong(remote, seed()), kNone);
}

TEST_P(TransferTest, LocalMemoryOfTheEngineServesAsWell) {
  Link link = this->link(kMiB);
  link.owner.fill(link.remote, seed());
  const Region pool = must(link.engine->allocate(kMiB));
  std::fill(pool.bytes().begin(), pool.bytes().end(), kUntouched);
  const std::array<const Region*, 1> own = {&pool};
  Session session = must(link.peer.session(own, std::span(&link.remote.desc, 1)));
  ASSERT_OK(must(session.read(whole(kMiB))).wait(10s));
  EXPECT_EQ(first_wrong(pool.bytes(), seed()), std::nullopt);
}

// What is mapped, and what is copied by the kernel or goes through a socket, in one batch.
class MixedPathTest : public EngineTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Private, MixedPathTest, ::testing::Values("cma", "unix", "tcp"),
                         [](const auto& param) { return std::string(param.param); });

TEST_P(MixedPathTest, OneBatchMayUseBothPaths) {
  const std::string way = GetParam();
  if (way == "cma" && !kernel_copies()) GTEST_SKIP() << "the kernel forbids process_vm_readv";
  OwnerProcess owner(options("owner"));
  const std::array<OwnedRegion, 2> owned = {owner.allocate(kMiB), owner.register_memory(kMiB)};
  owner.fill(owned[0], seed());
  owner.fill(owned[1], seed() + 1);
  EngineOptions reader = options("reader");
  reader.transports = {"shm", way};
  const auto engine = must(Engine::create(reader));
  const PrivateMemory memory(2 * kMiB);
  const Region local = must(engine->register_memory(memory.data(), memory.size()));
  const std::array<const Region*, 1> own = {&local};
  const std::array<RegionDesc, 2> descs = {owned[0].desc, owned[1].desc};
  Peer peer = must(engine->connect(owner.descriptor()));
  Session session = must(peer.session(own, descs));
  EXPECT_NE(session.explain().find("region 0 (1048576 bytes): shm"), std::string::npos);
  EXPECT_NE(session.explain().find("region 1 (1048576 bytes): " + way), std::string::npos);
  Ranges ranges;
  for (uint64_t i = 0; i < 512; ++i) {
    ranges.add(i * 4096, i / 2 * 4096, 4096);
    ranges.remote_regions.push_back(static_cast<uint32_t>(i % 2));
  }
  ASSERT_OK(must(session.read(ranges.list())).wait(10s));
  for (uint64_t i = 0; i < 512; ++i) {
    ASSERT_EQ(first_wrong(memory.bytes().subspan(i * 4096, 4096), seed() + i % 2, i / 2 * 4096),
              std::nullopt)
        << i;
  }
  EXPECT_EQ(metric(*engine, "shm_bytes_total"), kMiB);
  EXPECT_EQ(metric(*engine, way + "_bytes_total"), kMiB);
}

}  // namespace
}  // namespace stagelink::test
