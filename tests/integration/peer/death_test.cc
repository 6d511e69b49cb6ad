// Peers that die or stop at any moment (T01, T25, T27): terminal outcomes within the deadline, and
// nobody else notices.

#include <chrono>
#include <thread>

#include "base/process_id.h"
#include "integration/support/engine_test.h"
#include "integration/support/ranges.h"

namespace stagelink::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kBytes = 4 << 20;

// Many times the same bytes: a transfer that is still under way when its peer dies.
Ranges long_work() {
  Ranges ranges;
  for (uint64_t i = 0; i < 1024; ++i) ranges.add(i * 3 % 4 << 20, i * 3 % 4 << 20, 1 << 20);
  return ranges;
}

class PeerDeathTest : public PathTest {};
SL_FOR_BOTH_PATHS(PeerDeathTest);

TEST_P(PeerDeathTest, KilledMidTransferIsPeerLostWithinTwoSeconds) {
  Link link(reader_options("reader"), options("owner"), path(), kBytes);
  Transfer transfer = must(link.session.read(long_work().list(), 30s));
  link.owner.process().kill_hard();
  const auto before = Clock::now();
  const Status status = transfer.wait();
  EXPECT_LT(Clock::now() - before, 2s);
  EXPECT_EQ(status.code(), Code::kPeerLost) << status.to_string();
  EXPECT_EQ(status.scope(), Scope::kPeer);
  // The data connection may have told first.
  EXPECT_TRUE(eventually([&] { return link.peer.phase() == PeerPhase::kLost; }, 2s));
  EXPECT_EQ(metric(*link.engine, "transfers_in_flight"), 0);
  EXPECT_EQ(metric(*link.engine, "peers_lost_total"), 1);
  EXPECT_EQ(link.session.read(whole(64)).status().code(), Code::kPeerLost);
  EXPECT_EQ(link.peer.notify(bytes_of("x")).code(), Code::kPeerLost);
  const std::array<const Region*, 1> own = {&link.local};
  EXPECT_EQ(link.peer.session(own, std::span(&link.remote.desc, 1)).status().code(),
            Code::kPeerLost);
  // The local memory is free at once.
  EXPECT_OK(link.local.deregister(1s));
}

// T27: many in flight; one log line each at most, and all end.
TEST_P(PeerDeathTest, ThirtyTwoInFlightAllEnd) {
  Link link(reader_options("reader"), options("owner"), path(), kBytes);
  std::vector<Transfer> transfers;
  for (int i = 0; i < 32; ++i)
    transfers.push_back(must(link.session.read(long_work().list(), 20s)));
  link.owner.process().kill_hard();
  int lost = 0;
  for (Transfer& transfer : transfers) {
    const Status status = transfer.wait(2s);
    // The first ones may have been faster than the kill.
    EXPECT_TRUE(status.ok() || status.code() == Code::kPeerLost) << status.to_string();
    lost += status.ok() ? 0 : 1;
  }
  EXPECT_GT(lost, 16);
  EXPECT_EQ(metric(*link.engine, "transfers_in_flight"), 0);
}

// T01: of 32 transfers to 32 peers, the dead one's fails and the others do not notice.
TEST_P(PeerDeathTest, OthersAreUnaffected) {
  constexpr size_t kPeers = kSanitized ? 4 : 8;
  std::vector<std::unique_ptr<Link>> links;
  OwnerProcess healthy(options("healthy"));
  const OwnedRegion remote = make_region(healthy, path(), kBytes);
  healthy.fill(remote, seed());
  Link dead(reader_options("reader"), options("dead"), path(), kBytes);
  Peer peer = must(dead.engine->connect(healthy.descriptor()));
  std::vector<PrivateMemory> memories;
  std::vector<Region> regions;
  std::vector<Session> sessions;
  for (size_t i = 0; i < kPeers; ++i) {
    memories.emplace_back(kBytes);
    regions.push_back(must(dead.engine->register_memory(memories.back().data(), kBytes)));
    const std::array<const Region*, 1> own = {&regions.back()};
    sessions.push_back(must(peer.session(own, std::span(&remote.desc, 1))));
  }
  Transfer doomed = must(dead.session.read(long_work().list(), 20s));
  std::vector<Transfer> transfers;
  for (size_t i = 0; i < 31; ++i) {
    transfers.push_back(must(sessions[i % kPeers].read(whole(kBytes), 30s)));
  }
  dead.owner.process().kill_hard();
  for (Transfer& transfer : transfers) EXPECT_OK(transfer.wait());
  EXPECT_EQ(doomed.wait(2s).code(), Code::kPeerLost);
  for (const PrivateMemory& memory : memories) {
    EXPECT_EQ(first_wrong(memory.bytes(), seed()), std::nullopt);
  }
}

TEST_P(PeerDeathTest, ClosedEngineOfThePeerIsPeerLost) {
  Link link(reader_options("reader"), options("owner"), path(), kBytes);
  ASSERT_OK(link.owner.close());
  EXPECT_TRUE(eventually([&] { return link.peer.phase() == PeerPhase::kLost; }));
  EXPECT_EQ(link.session.read(whole(64)).status().code(), Code::kPeerLost);
}

// T01: a stopped owner. Its memory may still be read directly; a socket would wait, and does not
// wait longer than the deadline.
TEST_P(PeerDeathTest, StoppedOwnerNeverHangsAReader) {
  Link link(reader_options("reader"), options("owner"), path(), kBytes);
  link.owner.fill(link.remote, seed());
  ASSERT_OK(must(link.session.read(whole(kBytes))).wait(5s));
  link.memory.reset();
  link.owner.process().stop();
  const auto before = Clock::now();
  Transfer transfer = must(link.session.read(whole(kBytes), 1s));
  const Status status = transfer.wait();
  EXPECT_LT(Clock::now() - before, 4s);
  if (!is_socket(path())) {
    EXPECT_OK(status);
    EXPECT_EQ(first_wrong(link.memory.bytes(), seed()), std::nullopt);
  } else {
    EXPECT_TRUE(status.code() == Code::kTimedOut || status.code() == Code::kUnreachable)
        << status.to_string();
  }
  EXPECT_TRUE(eventually([&] { return link.peer.phase() == PeerPhase::kUnreachable; }));
  EXPECT_REASON(Reason::kStopped, link.peer.notify(bytes_of("are you there")));
  if (!is_socket(path())) {
    EXPECT_OK(must(link.session.read(whole(kBytes))).wait(5s));
  } else {
    auto refused = link.session.read(whole(64), 1s);
    EXPECT_EQ(refused.status().code(), Code::kUnreachable) << refused.status().to_string();
  }
  link.owner.process().resume();
  EXPECT_TRUE(eventually([&] { return link.peer.phase() == PeerPhase::kConnected; }));
  link.memory.reset();
  ASSERT_OK(must(link.session.read(whole(kBytes))).wait(5s));
  EXPECT_EQ(first_wrong(link.memory.bytes(), seed()), std::nullopt);
  EXPECT_OK(link.peer.notify(bytes_of("welcome back")));
}

TEST_P(PeerDeathTest, StoppedOwnerDoesNotDelayAHealthyOne) {
  Link stopped(reader_options("reader"), options("stopped"), path(), kBytes);
  OwnerProcess healthy(options("healthy"));
  const OwnedRegion remote = make_region(healthy, path(), kBytes);
  healthy.fill(remote, seed());
  Peer peer = must(stopped.engine->connect(healthy.descriptor()));
  const PrivateMemory memory(kBytes);
  const Region local = must(stopped.engine->register_memory(memory.data(), kBytes));
  const std::array<const Region*, 1> own = {&local};
  Session session = must(peer.session(own, std::span(&remote.desc, 1)));
  stopped.owner.process().stop();
  Transfer waits = must(stopped.session.read(long_work().list(), 10s));
  const auto before = Clock::now();
  ASSERT_OK(must(session.read(whole(kBytes), 5s)).wait());
  EXPECT_LT(Clock::now() - before, 4s);
  EXPECT_EQ(first_wrong(memory.bytes(), seed()), std::nullopt);
  (void)waits.cancel();
  stopped.owner.process().resume();
}

// The owner's side of a reader's death.
TEST_P(PeerDeathTest, OwnerForgetsAKilledReader) {
  Link link(reader_options("reader"), options("owner"), path(), kBytes);
  OwnerProcess reader(options("second"));
  ASSERT_OK(reader.connect(link.owner.descriptor()));
  const OwnedRegion own = reader.allocate(kBytes);
  ASSERT_OK(reader.read(own, link.remote.desc, kBytes));
  EXPECT_EQ(metric_in(link.owner.metrics_text(), "inbound_peers"), 2);
  reader.process().kill_hard();
  EXPECT_TRUE(
      eventually([&] { return metric_in(link.owner.metrics_text(), "inbound_peers") == 1; }));
  EXPECT_OK(link.owner.deregister(link.remote, 2s));
}

TEST_P(PeerDeathTest, DeadPeerLeavesNothingMapped) {
  Link link(reader_options("reader"), options("owner"), path(), kBytes);
  ASSERT_OK(must(link.session.read(whole(kBytes))).wait(5s));
  EXPECT_EQ(metric(*link.engine, "mapped_bytes"), path() == Path::kShm ? kBytes : 0);
  link.owner.process().kill_hard();
  EXPECT_TRUE(eventually([&] { return metric(*link.engine, "mapped_bytes") == 0; }));
}

}  // namespace
}  // namespace stagelink::test
