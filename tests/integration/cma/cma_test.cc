// Private memory on one host: which way a batch takes, and that no byte of it is stale.

#include <atomic>
#include <thread>

#include "integration/support/engine_test.h"
#include "integration/support/ranges.h"
#include "integration/support/unseen.h"

namespace stagelink::test {
namespace {

constexpr uint64_t kBytes = 1 << 20;
constexpr std::byte kPoison{0xDD};

class CmaTest : public EngineTest {
 protected:
  void SetUp() override {
    EngineTest::SetUp();
    if (!kernel_copies()) GTEST_SKIP() << "the kernel or a seccomp filter forbids process_vm_readv";
  }
  EngineOptions cma_only(const std::string& name) const {
    EngineOptions reader = options(name);
    reader.transports = {"cma"};
    return reader;
  }
  // `count` pieces of `bytes`, each 64 bytes apart from the one before.
  static Ranges scattered(size_t count, uint64_t bytes) {
    Ranges ranges;
    for (size_t i = 0; i < count; ++i) ranges.add(i * (bytes + 64), i * (bytes + 64), bytes);
    return ranges;
  }
  static Status move(Session& session, const Ranges& ranges, bool write = false) {
    auto transfer = write ? session.write(ranges.list()) : session.read(ranges.list());
    return transfer.ok() ? transfer->wait(5s) : transfer.status();
  }
  // Of `engine`, in this order: shm, cma, unix.
  static std::vector<double> bytes_by_transport(const Engine& engine) {
    return {metric(engine, "shm_bytes_total"), metric(engine, "cma_bytes_total"),
            metric(engine, "unix_bytes_total")};
  }
  // A batch that held `ranges` of a pattern at the same places on both sides.
  static void expect_moved(std::span<const std::byte> memory, const Ranges& ranges, uint64_t seed) {
    for (size_t i = 0; i < ranges.sizes.size(); ++i) {
      ASSERT_EQ(
          first_wrong(memory.subspan(ranges.local[i], ranges.sizes[i]), seed, ranges.remote[i]),
          std::nullopt)
          << "range " << i;
    }
  }
};

TEST_F(CmaTest, LongRunsAreCopiedByTheKernelAndShortOnesGoThroughTheSocket) {
  EngineOptions reader = options("reader");
  reader.cma_min_run = 2048;
  Link link(reader, options("owner"), Path::kCma, kBytes);
  link.owner.fill(link.remote, seed());
  const std::string why = link.session.explain();
  EXPECT_NE(why.find("cma"), std::string::npos) << why;
  EXPECT_NE(why.find("2KiB"), std::string::npos) << why;
  const Ranges runs = scattered(64, 2048);
  ASSERT_OK(move(link.session, runs));
  expect_moved(link.memory.bytes(), runs, seed());
  EXPECT_EQ(bytes_by_transport(*link.engine), (std::vector<double>{0, 64 * 2048, 0}));
  link.memory.reset();
  const Ranges shorter = scattered(64, 2047);
  ASSERT_OK(move(link.session, shorter));
  expect_moved(link.memory.bytes(), shorter, seed());
  EXPECT_EQ(bytes_by_transport(*link.engine), (std::vector<double>{0, 64 * 2048, 64 * 2047}));
}

TEST_F(CmaTest, WritesTakeTheSameTwoWays) {
  Link link(options("reader"), options("owner"), Path::kCma, kBytes);
  fill_pattern(link.memory.bytes(), seed());
  for (const uint64_t bytes : {uint64_t{4096}, uint64_t{100}}) {
    link.owner.set(link.remote, kPoison);
    const Ranges ranges = scattered(100, bytes);
    ASSERT_OK(move(link.session, ranges, /*write=*/true));
    for (size_t i = 0; i < 100; ++i) {
      const uint64_t at = ranges.remote[i];
      ASSERT_EQ(link.owner.first_wrong(link.remote, seed(), at, bytes, at), kNone) << i;
      ASSERT_EQ(link.owner.first_not(link.remote, kPoison, at + bytes, 64), kNone) << i;
    }
  }
  EXPECT_EQ(bytes_by_transport(*link.engine), (std::vector<double>{0, 409600, 10000}));
}

TEST_F(CmaTest, OneBatchMayMapCopyAndStream) {
  OwnerProcess owner(options("owner"));
  const OwnedRegion regions[] = {owner.allocate(kBytes), owner.register_memory(kBytes),
                                 owner.register_memory(kBytes)};
  for (size_t i = 0; i < 3; ++i) owner.fill(regions[i], seed() + i);
  const auto engine = make_engine("reader");
  const PrivateMemory memory(3 * kBytes);
  const Region local = must(engine->register_memory(memory.data(), memory.size()));
  Peer peer = must(engine->connect(owner.descriptor()));
  const std::array<const Region*, 1> own = {&local};
  const std::vector<RegionDesc> descs = {regions[0].desc, regions[1].desc, regions[2].desc};
  Session session = must(peer.session(own, descs));
  for (const bool write : {false, true}) {
    Ranges ranges;
    for (uint64_t i = 0; i < 300; ++i) {
      ranges.add(i % 3 * kBytes + i / 3 * 8192, i / 3 * 8192, 5000);
      ranges.local_regions.push_back(0);
      ranges.remote_regions.push_back(static_cast<uint32_t>(i % 3));
    }
    if (write) {
      for (const OwnedRegion& region : regions) owner.set(region, kPoison);
    }
    ASSERT_OK(move(session, ranges, write));
    for (uint64_t i = 0; i < 300; ++i) {
      const uint64_t at = i / 3 * 8192;
      const auto piece = memory.bytes().subspan(i % 3 * kBytes + at, 5000);
      ASSERT_EQ(first_wrong(piece, seed() + i % 3, at), std::nullopt);
      ASSERT_EQ(owner.first_wrong(regions[i % 3], seed() + i % 3, at, 5000, at), kNone);
    }
  }
  EXPECT_EQ(bytes_by_transport(*engine), (std::vector<double>{1e6, 2e6, 0}));
}

TEST_F(CmaTest, AddressesAreCopiedToo) {
  OwnerProcess owner(options("owner"));
  const OwnedRegion first = owner.register_memory(kBytes);
  const auto engine = make_engine("reader");
  const PrivateMemory memory(kBytes);
  const Region local = must(engine->register_memory(memory.data(), memory.size()));
  Peer peer = must(engine->connect(owner.descriptor()));
  const std::array<const Region*, 1> own = {&local};
  Session session = must(peer.session_by_address(own));
  // Registered after the session was made.
  const OwnedRegion second = owner.register_memory(kBytes);
  for (const OwnedRegion* region : {&first, &second}) {
    owner.fill(*region, seed());
    for (const uint64_t bytes : {uint64_t{8192}, uint64_t{64}}) {
      memory.reset();
      Ranges ranges = scattered(100, bytes);
      for (uint64_t& address : ranges.remote) address += region->desc.address;
      ASSERT_OK(move(session, ranges));
      for (size_t i = 0; i < 100; ++i) {
        const uint64_t at = ranges.local[i];
        ASSERT_EQ(first_wrong(memory.bytes().subspan(at, bytes), seed(), at), std::nullopt);
      }
    }
  }
  EXPECT_EQ(bytes_by_transport(*engine), (std::vector<double>{0, 2 * 819200, 2 * 6400}));
}

TEST_F(CmaTest, MemoryThatCouldBeMappedIsCopiedIfOnlyCmaMayBeUsed) {
  OwnerProcess owner(options("owner"));
  const OwnedRegion remote = owner.allocate(kBytes);
  owner.fill(remote, seed());
  const auto engine = must(Engine::create(cma_only("reader")));
  const PrivateMemory memory(kBytes);
  const Region local = must(engine->register_memory(memory.data(), memory.size()));
  Peer peer = must(engine->connect(owner.descriptor()));
  const std::array<const Region*, 1> own = {&local};
  Session session = must(peer.session(own, std::span(&remote.desc, 1)));
  ASSERT_OK(must(session.read(whole(kBytes))).wait(5s));
  EXPECT_EQ(first_wrong(memory.bytes(), seed()), std::nullopt);
  EXPECT_EQ(bytes_by_transport(*engine), (std::vector<double>{0, kBytes, 0}));
}

TEST_F(CmaTest, AnOwnerWithoutCmaIsNotCopiedFrom) {
  EngineOptions shy = options("owner");
  shy.transports = {"shm", "unix"};
  Link link(options("reader"), shy, Path::kCma, kBytes);
  ASSERT_OK(must(link.session.read(whole(kBytes))).wait(5s));
  EXPECT_EQ(metric(*link.engine, "unix_bytes_total"), kBytes);
  EXPECT_NE(link.session.explain().find("does not offer"), std::string::npos)
      << link.session.explain();
  const auto engine = must(Engine::create(cma_only("other")));
  const Region local = must(engine->register_memory(link.memory.data(), link.memory.size()));
  Peer peer = must(engine->connect(link.owner.descriptor()));
  const std::array<const Region*, 1> own = {&local};
  const Status refused = peer.session(own, std::span(&link.remote.desc, 1)).status();
  EXPECT_EQ(refused.code(), Code::kUnreachable) << refused.to_string();
}

// What the owner puts into memory that it has taken back stays there.
TEST_F(CmaTest, NoWriteLandsAfterDeregistration) {
  const int rounds = kSanitized ? 10 : 40;
  Link link(cma_only("writer"), options("owner"), Path::kCma, 256 << 10);
  for (int round = 0; round < rounds; ++round) {
    std::atomic<int> written{0};
    std::atomic<bool> over{false};
    const OwnedRegion region = link.owner.register_memory(256 << 10);
    const std::array<const Region*, 1> own = {&link.local};
    Session session = must(link.peer.session(own, std::span(&region.desc, 1)));
    std::vector<std::thread> writers;
    for (int i = 0; i < 2; ++i) {
      writers.emplace_back([&] {
        for (;;) {
          const bool late = over.load();
          auto transfer = session.write(whole(256 << 10));
          const Status status = transfer.ok() ? transfer->wait(5s) : transfer.status();
          if (!status.ok()) {
            EXPECT_EQ(status.code(), Code::kSuperseded) << status.to_string();
            return;
          }
          ++written;
          ASSERT_FALSE(late) << "success after the end of the registration";
        }
      });
    }
    EXPECT_TRUE(eventually([&] { return written.load() > 0; }));
    EXPECT_OK(link.owner.deregister(region, 5s));
    link.owner.set(region, kPoison);
    over.store(true);
    for (std::thread& writer : writers) writer.join();
    EXPECT_EQ(link.owner.first_not(region, kPoison), kNone);
  }
}

TEST_F(CmaTest, OwnerThatRestartsIsAnotherPeer) {
  auto link = std::make_unique<Link>(cma_only("reader"), options("owner"), Path::kCma, kBytes);
  ASSERT_OK(must(link->session.read(whole(kBytes))).wait(5s));
  link->owner.process().kill_hard();
  const OwnerProcess next(options("owner"));
  auto transfer = link->session.read(whole(kBytes));
  const Status status = transfer.ok() ? transfer->wait(5s) : transfer.status();
  EXPECT_EQ(status.code(), Code::kPeerLost) << status.to_string();
}

TEST_F(CmaTest, ManyThreadsCopyAtOnce) {
  Link link(cma_only("reader"), options("owner"), Path::kCma, kBytes);
  link.owner.fill(link.remote, seed());
  std::vector<std::thread> readers;
  for (int i = 0; i < 20; ++i) {  // More than there are lanes.
    readers.emplace_back([&] {
      const PrivateMemory memory(kBytes);
      const Region local = must(link.engine->register_memory(memory.data(), memory.size()));
      const std::array<const Region*, 1> own = {&local};
      Session session = must(link.peer.session(own, std::span(&link.remote.desc, 1)));
      for (int round = 0; round < 10; ++round) {
        memory.reset();
        ASSERT_OK(must(session.read(whole(kBytes))).wait(10s));
        ASSERT_EQ(first_wrong(memory.bytes(), seed()), std::nullopt);
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
}

}  // namespace
}  // namespace stagelink::test
