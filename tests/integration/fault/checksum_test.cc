// Two processes with a network between them that flips bits, and the option checksum.

#include <algorithm>

#include "integration/fault/flip_proxy.h"
#include "integration/support/engine_test.h"
#include "integration/support/ranges.h"

namespace stagelink::test {
namespace {

constexpr uint64_t kSlots = 64;
constexpr uint64_t kSlot = 16 << 10;
constexpr uint64_t kBytes = kSlots * kSlot;

class ChecksumTest : public EngineTest {
 protected:
  EngineOptions reader_options(bool checksum) const {
    EngineOptions reader = options("reader");
    reader.transports = {"tcp"};
    reader.checksum = checksum;
    reader.transfer_timeout = 10s;
    reader.heartbeat_interval = 10s;  // No ping brings the peer down in the middle of a round.
    return reader;
  }
};

// A reader whose way to the owner leads through the proxy.
struct SpoiltLink {
  SpoiltLink(const EngineOptions& reader, const EngineOptions& owner_options, uint64_t seed,
             uint64_t mean_bytes)
      : owner(owner_options),
        remote(owner.register_memory(kBytes)),
        memory(kBytes),
        proxy(owner.address(), seed, mean_bytes),
        engine(must(Engine::create(reader))),
        local(must(engine->register_memory(memory.data(), memory.size()))) {}

  // A new session; a peer that was lost is met again.
  Result<Session> session() {
    if (!peer.has_value() || peer->phase() == PeerPhase::kLost) {
      peer.reset();
      auto met = engine->connect(proxy.address(), 30s);
      if (!met.ok()) return met.status();
      peer.emplace(*std::move(met));
    }
    const std::array<const Region*, 1> own = {&local};
    return peer->session(own, std::span(&remote.desc, 1));
  }

  OwnerProcess owner;
  OwnedRegion remote;
  PrivateMemory memory;
  FlipProxy proxy;
  std::unique_ptr<Engine> engine;
  Region local;
  std::optional<Peer> peer;
};

// Every second slot, so that nothing merges.
Ranges every_second_slot() {
  Ranges ranges;
  for (uint64_t i = 0; i < kSlots; i += 2) ranges.add(i * kSlot, i * kSlot, kSlot);
  return ranges;
}

bool allowed(const Status& status) {
  return status.ok() || status.code() == Code::kCorrupt || status.code() == Code::kPeerLost ||
         status.code() == Code::kUnreachable;
}

TEST_F(ChecksumTest, NoWrongByteIsReportedAsSuccess) {
  // A batch of 512 KiB meets a flip every second time.
  SpoiltLink link(reader_options(true), options("owner"), seed(), 1 << 20);
  const Ranges ranges = every_second_slot();
  int succeeded = 0;
  int failed = 0;
  for (int round = 0; round < 60; ++round) {
    link.proxy.spoil(false);  // The handshake is not what is tested here.
    Session session = must(link.session());
    auto warm_up = session.read(StridedRange{.bytes = 8, .count = 1});  // Connects the stream.
    ASSERT_TRUE(warm_up.ok()) << warm_up.status().to_string();
    (void)warm_up->wait(5s);
    const uint64_t pattern = seed() + static_cast<uint64_t>(round);
    const bool write = round % 2 == 1;
    if (write) {
      fill_pattern(link.memory.bytes(), pattern);
      link.owner.set(link.remote, std::byte{0});
    } else {
      link.memory.reset();
      link.owner.fill(link.remote, pattern);
    }
    link.proxy.spoil(true);
    auto transfer = write ? session.write(ranges.list()) : session.read(ranges.list());
    const Status status = transfer.ok() ? transfer->wait(15s) : transfer.status();
    SCOPED_TRACE("round " + std::to_string(round) + ": " + status.to_string());
    ASSERT_TRUE(allowed(status));
    link.proxy.spoil(false);
    status.ok() ? ++succeeded : ++failed;
    if (!status.ok()) continue;
    for (uint64_t i = 0; i < kSlots; i += 2) {
      const uint64_t at = i * kSlot;
      if (write) {
        ASSERT_EQ(link.owner.first_wrong(link.remote, pattern, at, kSlot, at), kNone);
      } else {
        ASSERT_EQ(first_wrong(link.memory.bytes().subspan(at, kSlot), pattern, at), std::nullopt);
      }
    }
  }
  EXPECT_GT(succeeded, 0);
  EXPECT_GT(failed, 0);
  EXPECT_GT(link.proxy.flips(), 0U);
  EXPECT_TRUE(link.memory.canaries_intact());
  const double reader_saw = metric(*link.engine, "failures_total", "checksum");
  const double owner_saw = metric_in(link.owner.metrics_text(), "failures_total", "checksum");
  EXPECT_GT(reader_saw, 0);
  EXPECT_GT(owner_saw, 0);
}

// All series of stagelink_failures_total that are not 0, as "reason=count".
std::string failures(std::string_view metrics) {
  std::string out;
  for (int i = 1; i < kReasonCount; ++i) {
    const std::string name(reason_name(static_cast<Reason>(i)));
    if (const double count = metric_in(metrics, "failures_total", name); count > 0) {
      out += name + "=" + std::to_string(static_cast<int>(count)) + " ";
    }
  }
  return out;
}

TEST_F(ChecksumTest, ADamagedReadFailsOnceAndTheNextOneConnectsAnew) {
  SpoiltLink link(reader_options(true), options("owner"), seed(), 1);
  link.owner.fill(link.remote, seed());
  Session session = must(link.session());
  ASSERT_OK(must(session.read(whole(kBytes))).wait(10s));
  link.memory.reset();
  link.proxy.spoil_one(/*way=*/1, kBytes / 2);
  EXPECT_REASON(Reason::kChecksum, must(session.read(whole(kBytes))).wait(10s));
  EXPECT_EQ(failures(link.engine->metrics_text()), "checksum=1 ");
  ASSERT_OK(must(session.read(whole(kBytes))).wait(10s));
  EXPECT_EQ(first_wrong(link.memory.bytes(), seed()), std::nullopt);
  EXPECT_EQ(failures(link.engine->metrics_text()), "checksum=1 ");
  EXPECT_EQ(failures(link.owner.metrics_text()), "");
  EXPECT_EQ(metric(*link.engine, "peers_lost_total"), 0);
}

TEST_F(ChecksumTest, ADamagedWriteFailsOnceOnEachSide) {
  SpoiltLink link(reader_options(true), options("owner"), seed(), 1);
  fill_pattern(link.memory.bytes(), seed());
  Session session = must(link.session());
  ASSERT_OK(must(session.write(whole(kBytes))).wait(10s));
  link.proxy.spoil_one(/*way=*/0, kBytes / 2);
  EXPECT_REASON(Reason::kChecksum, must(session.write(whole(kBytes))).wait(10s));
  EXPECT_EQ(failures(link.owner.metrics_text()), "checksum=1 ");
  ASSERT_OK(must(session.write(whole(kBytes))).wait(10s));
  EXPECT_EQ(link.owner.first_wrong(link.remote, seed()), kNone);
  EXPECT_EQ(failures(link.engine->metrics_text()), "checksum=1 ");
  EXPECT_EQ(failures(link.owner.metrics_text()), "checksum=1 ");
}

// What the proxy does without sums: this test would not find what the other one guards.
TEST_F(ChecksumTest, WithoutSumsTheSameNetworkSpoilsBytes) {
  SpoiltLink link(reader_options(false), options("owner"), seed(), 64 << 10);
  const Ranges ranges = every_second_slot();
  link.owner.fill(link.remote, seed());
  bool spoilt = false;
  for (int round = 0; round < 100 && !spoilt; ++round) {
    link.proxy.spoil(false);
    Session session = must(link.session());
    (void)must(session.read(StridedRange{.bytes = 8, .count = 1})).wait(5s);
    link.proxy.spoil(true);
    auto transfer = session.read(ranges.list());
    if (!transfer.ok() || !transfer->wait(15s).ok()) continue;
    for (uint64_t at = 0; at < kBytes; at += 2 * kSlot) {
      spoilt =
          spoilt || first_wrong(link.memory.bytes().subspan(at, kSlot), seed(), at).has_value();
    }
  }
  EXPECT_TRUE(spoilt);
}

TEST_F(ChecksumTest, EitherSideTurnsItOn) {
  for (const bool reader_asks : {false, true}) {
    EngineOptions owner = options("owner");
    owner.checksum = !reader_asks;
    // Each byte that passes is spoilt.
    SpoiltLink link(reader_options(reader_asks), owner, seed(), 1);
    Session session = must(link.session());
    ASSERT_OK(must(session.read(StridedRange{.bytes = 8, .count = 1})).wait(5s));
    link.proxy.spoil(true);
    auto transfer = session.read(whole(kSlot));
    const Status status = transfer.ok() ? transfer->wait(15s) : transfer.status();
    EXPECT_TRUE(status.code() == Code::kPeerLost || status.code() == Code::kCorrupt)
        << status.to_string();
    EXPECT_TRUE(eventually(
        [&] { return metric_in(link.owner.metrics_text(), "failures_total", "checksum") == 1; }));
  }
}

class ChecksumPathTest : public PathTest {};
INSTANTIATE_TEST_SUITE_P(Paths, ChecksumPathTest,
                         ::testing::Values(Path::kShm, Path::kUnix, Path::kTcp), path_name);

TEST_P(ChecksumPathTest, AnUnspoiltWayCarriesCheckedFrames) {
  EngineOptions reader = reader_options("reader");
  reader.checksum = true;
  Link link(reader, options("owner"), path(), 5 << 20);
  link.owner.fill(link.remote, seed());
  ASSERT_OK(must(link.session.read(whole(5 << 20))).wait(10s));
  EXPECT_EQ(first_wrong(link.memory.bytes(), seed()), std::nullopt);
  fill_pattern(link.memory.bytes(), seed() + 1);
  ASSERT_OK(must(link.session.write(whole(5 << 20))).wait(10s));
  EXPECT_EQ(link.owner.first_wrong(link.remote, seed() + 1), kNone);
  ASSERT_OK(link.peer.notify(bytes_of("done")));
  EXPECT_EQ(link.owner.take(5s, 1).size(), 1U);
  EXPECT_EQ(metric(*link.engine, "failures_total", "checksum"), 0);
}

}  // namespace
}  // namespace stagelink::test
