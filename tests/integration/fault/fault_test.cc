// Injected faults from a printed seed: with a checksum on top no wrong byte is taken for a right
// one, every transfer ends by its deadline, and trying again gets there.

#include <chrono>

#include "integration/support/engine_test.h"
#include "integration/support/ranges.h"

namespace stagelink::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kBytes = 4 << 20;

class FaultTest : public PathTest {
 protected:
  EngineOptions faulty(uint32_t drop, uint32_t delay, uint32_t flip) const {
    EngineOptions reader = reader_options("faulty");
    reader.fault_seed = seed() | 1;
    reader.fault_drop_ppm = drop;
    reader.fault_delay_ppm = delay;
    reader.fault_flip_ppm = flip;
    // Each draws once for 64 KiB.
    reader.slice_bytes = path() == Path::kCma ? 4 << 10 : 64 << 10;
    return reader;
  }
};
SL_FOR_BOTH_PATHS(FaultTest);

TEST_P(FaultTest, DroppedSlicesNeverCountAsMoved) {
  Link link(faulty(5'000, 0, 0), options("owner"), path(), kBytes);
  link.owner.fill(link.remote, seed());
  int failures = 0;
  int successes = 0;
  for (int round = 0; round < 40; ++round) {
    link.memory.reset();
    const auto before = Clock::now();
    Transfer transfer = must(link.session.read(whole(kBytes), 300ms));
    const Status status = transfer.wait();
    EXPECT_LT(Clock::now() - before, 5s);
    status.ok() ? ++successes : ++failures;
    if (status.ok()) {
      ASSERT_EQ(first_wrong(link.memory.bytes(), seed()), std::nullopt);
    } else {
      EXPECT_EQ(status.scope(), Scope::kTransfer) << status.to_string();
    }
  }
  std::printf("%d failures, %d successes\n", failures, successes);
  EXPECT_GT(successes, 0);
  EXPECT_EQ(metric(*link.engine, "transfers_in_flight"), 0);
  EXPECT_EQ(failures > 0, metric(*link.engine, "faults_injected_total") > 0);
}

TEST_P(FaultTest, DelayedSlicesArriveWholeOrNotInTime) {
  Link link(faulty(0, 20'000, 0), options("owner"), path(), kBytes);
  link.owner.fill(link.remote, seed());
  for (int round = 0; round < 10; ++round) {
    link.memory.reset();
    const Status status = must(link.session.read(whole(kBytes), 3s)).wait();
    if (status.ok()) {
      ASSERT_EQ(first_wrong(link.memory.bytes(), seed()), std::nullopt);
    } else {
      EXPECT_REASON(Reason::kTimedOut, status);
    }
  }
}

// What a checksum over the block is for: a flipped bit reports success below it.
TEST_P(FaultTest, FlippedBitsAreSeenByAChecksumAndGoneOnARetry) {
  Link link(faulty(0, 0, 20'000), options("owner"), path(), kBytes);
  link.owner.fill(link.remote, seed());
  int flips = 0;
  for (int block = 0; block < 20; ++block) {
    bool right = false;
    for (int attempt = 0; attempt < 50 && !right; ++attempt) {
      link.memory.reset();
      const Status status = must(link.session.read(whole(kBytes), 5s)).wait();
      ASSERT_TRUE(status.ok()) << status.to_string();
      right = !first_wrong(link.memory.bytes(), seed());
      flips += right ? 0 : 1;
    }
    ASSERT_TRUE(right) << "block " << block;
  }
  std::printf("%d blocks had to be read again\n", flips);
  EXPECT_GT(flips, 0);
  EXPECT_EQ(link.owner.first_wrong(link.remote, seed()), kNone);
}

TEST_P(FaultTest, CutPeersAreLostAndConnectedAnew) {
  EngineOptions reader = faulty(0, 0, 0);
  reader.fault_cut_ppm = 3'000;
  OwnerProcess owner(options("owner"));
  const OwnedRegion remote = make_region(owner, path(), kBytes);
  owner.fill(remote, seed());
  const auto engine = must(Engine::create(reader));
  const PrivateMemory memory(kBytes);
  const Region local = must(engine->register_memory(memory.data(), kBytes));
  const std::array<const Region*, 1> own = {&local};
  int cuts = 0;
  for (int round = 0; round < 20; ++round) {
    Peer peer = must(engine->connect(owner.descriptor()));
    Session session = must(peer.session(own, std::span(&remote.desc, 1)));
    for (;;) {
      memory.reset();
      auto transfer = session.read(whole(kBytes), 5s);
      const Status status = transfer.ok() ? transfer->wait() : transfer.status();
      if (!status.ok()) {
        EXPECT_EQ(status.code(), Code::kPeerLost) << status.to_string();
        ++cuts;
        break;
      }
      ASSERT_EQ(first_wrong(memory.bytes(), seed()), std::nullopt);
    }
  }
  EXPECT_EQ(cuts, 20);
  EXPECT_TRUE(eventually([&] { return metric(*engine, "peers") == 0; }));
}

}  // namespace
}  // namespace stagelink::test
