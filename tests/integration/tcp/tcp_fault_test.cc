// A network that fails between two processes (T01, T27), and batches over several connections.

#include <algorithm>
#include <chrono>

#include "integration/fault/flip_proxy.h"
#include "integration/support/engine_test.h"
#include "integration/support/ranges.h"
#include "integration/support/unseen.h"

namespace stagelink::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kBytes = 32 << 20;

class TcpFaultTest : public EngineTest {
 protected:
  EngineOptions reader_options() const {
    EngineOptions reader = options("reader");
    reader.transports = {"tcp"};
    return reader;
  }
};

// A reader whose way to the owner leads through the proxy.
struct FarLink {
  FarLink(const EngineOptions& reader, const EngineOptions& owner_options)
      : owner(owner_options),
        remote(owner.register_memory(kBytes)),
        memory(kBytes),
        proxy(owner.address(), 1, kBytes),
        engine(must(Engine::create(reader))),
        local(must(engine->register_memory(memory.data(), memory.size()))),
        peer(must(engine->connect(proxy.address(), 5s))),
        session(new_session()) {}
  Session new_session() {
    const std::array<const Region*, 1> own = {&local};
    return must(peer.session(own, std::span(&remote.desc, 1)));
  }

  OwnerProcess owner;
  OwnedRegion remote;
  PrivateMemory memory;
  FlipProxy proxy;
  std::unique_ptr<Engine> engine;
  Region local;
  Peer peer;
  Session session;
};

// T01: the other side is silent, and no connection ends.
TEST_F(TcpFaultTest, HoleInTheNetworkCostsTheDeadlineAndNoMore) {
  FarLink link(reader_options(), options("owner"));
  ASSERT_OK(must(link.session.read(whole(kBytes))).wait(10s));
  link.proxy.swallow(true);
  const auto before = Clock::now();
  Transfer read = must(link.session.read(whole(kBytes), 1s));
  Transfer write = must(link.session.write(whole(kBytes), 1s));
  EXPECT_EQ(read.wait().code(), Code::kTimedOut);
  EXPECT_EQ(write.wait().code(), Code::kTimedOut);
  EXPECT_LT(Clock::now() - before, 10s);
  EXPECT_TRUE(eventually([&] { return link.peer.phase() == PeerPhase::kUnreachable; }));
  EXPECT_REASON(Reason::kStopped, link.session.read(whole(64), 1s).status());
  EXPECT_REASON(Reason::kStopped, link.peer.notify(bytes_of("anybody")));
  const auto closing = Clock::now();
  EXPECT_OK(link.engine->close(5s));
  EXPECT_LT(Clock::now() - closing, 5s);
}

TEST_F(TcpFaultTest, DataConnectionThatIsResetEndsItsBatchAndTheNextConnectsAnew) {
  for (const bool is_read : {true, false}) {
    FarLink link(reader_options(), options("owner"));
    link.owner.fill(link.remote, seed());
    ASSERT_OK(must(link.session.read(whole(kBytes))).wait(10s));
    const uint64_t connections = link.proxy.connections();
    link.proxy.reset_after(3 << 20);
    Transfer cut =
        must(is_read ? link.session.read(whole(kBytes)) : link.session.write(whole(kBytes)));
    EXPECT_EQ(cut.wait(10s).code(), Code::kPeerLost) << cut.status().to_string();
    EXPECT_TRUE(link.proxy.has_reset());
    EXPECT_EQ(link.peer.phase(), PeerPhase::kConnected);
    // The next one is whole: nothing of the first lands on top of it.
    if (!is_read) {
      const UnseenByTsan unseen;
      fill_pattern(link.memory.bytes(), seed() + 1);
    } else {
      link.memory.reset();
    }
    // The end of the other connections is heard of in its own time.
    Status again;
    ASSERT_TRUE(eventually([&] {
      auto transfer =
          is_read ? link.session.read(whole(kBytes)) : link.session.write(whole(kBytes));
      again = transfer.ok() ? transfer->wait(10s) : transfer.status();
      return again.ok();
    })) << again.to_string();
    if (is_read) {
      EXPECT_EQ(first_wrong(link.memory.bytes(), seed()), std::nullopt);
    } else {
      EXPECT_EQ(link.owner.first_wrong(link.remote, seed() + 1), kNone);
    }
    EXPECT_GT(link.proxy.connections(), connections);
  }
}

// Stripes: every byte once, in its place, also when pieces are cut in the middle.
TEST_F(TcpFaultTest, BatchOverFourConnectionsIsWhole) {
  EngineOptions striped = reader_options();
  striped.stream_stripes = 4;
  striped.stripe_min_bytes = 64 << 10;
  FarLink link(striped, options("owner"));
  link.owner.fill(link.remote, seed());
  EXPECT_EQ(link.proxy.connections(), 3U);  // Probe, control, and the session's first.
  ASSERT_OK(must(link.session.read(whole(4096))).wait(10s));
  EXPECT_EQ(link.proxy.connections(), 3U) << "a small batch needs no more";
  link.memory.reset();
  ASSERT_OK(must(link.session.read(whole(kBytes))).wait(20s));
  EXPECT_EQ(first_wrong(link.memory.bytes(), seed()), std::nullopt);
  EXPECT_EQ(link.proxy.connections(), 6U);
  // Scattered pieces of odd sizes, back.
  {
    const UnseenByTsan unseen;
    fill_pattern(link.memory.bytes(), seed() + 1);
  }
  Ranges ranges;
  for (uint64_t at = 0, i = 0; at < kBytes; ++i) {
    const uint64_t size = std::min<uint64_t>(1 + i * 977 % 70001, kBytes - at);
    ranges.add(at, at, size);
    at += size;
  }
  for (int round = 0; round < 3; ++round) {
    ASSERT_OK(must(link.session.write(ranges.list())).wait(20s));
    EXPECT_EQ(link.owner.first_wrong(link.remote, seed() + 1), kNone);
    link.owner.fill(link.remote, seed());
  }
  EXPECT_EQ(link.proxy.connections(), 6U);
}

// T14: bytes and notice travel over connections of their own.
TEST_F(TcpFaultTest, NoticeOverAnotherConnectionIsNeverAheadOfTheBytes) {
  EngineOptions striped = reader_options();
  striped.stream_stripes = 3;
  striped.stripe_min_bytes = 64 << 10;
  FarLink link(striped, options("owner"));
  constexpr uint64_t kPart = 4 << 20;
  const uint64_t rounds = kSanitized ? 10 : 40;
  for (uint64_t round = 0; round < rounds; ++round) {
    {
      const UnseenByTsan unseen;
      fill_pattern(link.memory.bytes().first(kPart), seed() + round);
    }
    {
      const Transfer transfer = must(link.session.write(whole(kPart)));
      ASSERT_OK(link.peer.notify(bytes_of("written"), transfer));
    }
    const auto taken = link.owner.take(10s);
    ASSERT_EQ(taken.size(), 1U);
    ASSERT_EQ(taken[0].outcome, Reason::kOk);
    ASSERT_EQ(link.owner.first_wrong(link.remote, seed() + round, 0, kPart), kNone) << round;
  }
}

// T27: many in flight over stripes when the owner dies.
TEST_F(TcpFaultTest, ThirtyTwoInFlightAllEndWhenTheOwnerIsKilled) {
  EngineOptions striped = reader_options();
  striped.stream_stripes = 4;
  striped.stripe_min_bytes = 64 << 10;
  FarLink link(striped, options("owner"));
  ASSERT_OK(must(link.session.read(whole(kBytes))).wait(10s));
  std::vector<Transfer> transfers;
  for (uint64_t i = 0; i < 32; ++i) {
    transfers.push_back(
        must(i % 2 == 0 ? link.session.read(whole(kBytes)) : link.session.write(whole(kBytes))));
  }
  link.owner.process().kill_hard();
  const auto before = Clock::now();
  for (Transfer& transfer : transfers) {
    const Status status = transfer.wait(10s);
    EXPECT_TRUE(status.ok() || status.code() == Code::kPeerLost) << status.to_string();
  }
  EXPECT_LT(Clock::now() - before, 10s);
  EXPECT_TRUE(eventually([&] { return link.peer.phase() == PeerPhase::kLost; }));
  EXPECT_EQ(metric(*link.engine, "transfers_in_flight"), 0);
}

}  // namespace
}  // namespace stagelink::test
