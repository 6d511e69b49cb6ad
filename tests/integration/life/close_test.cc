// The end of an engine, and of what outlives it.

#include <atomic>
#include <chrono>
#include <thread>

#include <poll.h>

#include "integration/support/engine_test.h"
#include "integration/support/ranges.h"

namespace stagelink::test {
namespace {

constexpr uint64_t kBytes = 4 << 20;

Ranges long_work() {
  Ranges ranges;
  for (uint64_t i = 0; i < 1024; ++i) ranges.add(i * 3 % 4 << 20, i * 3 % 4 << 20, 1 << 20);
  return ranges;
}

class CloseTest : public PathTest {};
SL_FOR_BOTH_PATHS(CloseTest);

TEST_P(CloseTest, TransfersInFlightEndAndTheMemoryIsFree) {
  Link link(reader_options("reader"), options("owner"), path(), kBytes);
  Transfer transfer = must(link.session.read(long_work().list()));
  const auto before = std::chrono::steady_clock::now();
  EXPECT_OK(link.engine->close());
  EXPECT_LT(std::chrono::steady_clock::now() - before, 3s);
  EXPECT_REASON(Reason::kClosed, transfer.wait(1s));
  EXPECT_EQ(transfer.poll(), TransferPhase::kFailed);
  fill_pattern(link.memory.bytes(), seed());
  EXPECT_EQ(first_wrong(link.memory.bytes(), seed()), std::nullopt);
}

TEST_P(CloseTest, SecondCloseIsOkAndEverythingElseIsClosed) {
  Link link(reader_options("reader"), options("owner"), path(), kBytes);
  EXPECT_OK(link.engine->close());
  EXPECT_OK(link.engine->close());
  EXPECT_REASON(Reason::kClosed, link.engine->allocate(4096).status());
  EXPECT_REASON(Reason::kClosed, link.engine->connect(link.owner.descriptor()).status());
  EXPECT_REASON(Reason::kClosed, link.engine->notifications(10s).status());
  EXPECT_REASON(Reason::kClosed, link.engine->fileno().status());
  EXPECT_REASON(Reason::kClosed, link.session.read(whole(64)).status());
  EXPECT_REASON(Reason::kClosed, link.peer.notify(bytes_of("x")));
  EXPECT_REASON(Reason::kClosed, link.local.deregister());
  const std::array<const Region*, 1> own = {&link.local};
  EXPECT_REASON(Reason::kClosed, link.peer.session(own, std::span(&link.remote.desc, 1)).status());
}

TEST_P(CloseTest, HandlesOutliveTheEngineInAnyOrder) {
  for (int order = 0; order < 4; ++order) {
    OwnerProcess owner(options("owner"));
    const OwnedRegion remote = make_region(owner, path(), kBytes);
    const PrivateMemory memory(kBytes);
    auto engine = must(Engine::create(reader_options("reader")));
    std::optional<Region> local(must(engine->register_memory(memory.data(), kBytes)));
    std::optional<Region> pool(must(engine->allocate(4096)));
    const std::array<const Region*, 1> own = {&*local};
    std::optional<Peer> peer(must(engine->connect(owner.descriptor())));
    std::optional<Session> session(must(peer->session(own, std::span(&remote.desc, 1))));
    std::optional<Transfer> transfer(must(session->read(long_work().list())));
    engine.reset();
    if (order == 0) transfer.reset(), session.reset(), peer.reset(), local.reset();
    if (order == 1) local.reset(), peer.reset(), session.reset(), transfer.reset();
    if (order == 2) session.reset(), local.reset(), transfer.reset(), peer.reset();
    // Order 3: as the declarations unwind.
    if (pool) (void)pool->bytes();
  }
}

TEST_P(CloseTest, SleepersWakeWhenTheEngineCloses) {
  Link link(reader_options("reader"), options("owner"), path(), kBytes);
  std::atomic<int> woken{0};
  std::vector<std::thread> sleepers;
  for (int i = 0; i < 3; ++i) {
    sleepers.emplace_back([&] {
      const Status status = link.engine->notifications(30s).status();
      if (status.reason() == Reason::kClosed) ++woken;
    });
  }
  const auto before = std::chrono::steady_clock::now();
  EXPECT_OK(link.engine->close());
  for (std::thread& sleeper : sleepers) sleeper.join();
  EXPECT_LT(std::chrono::steady_clock::now() - before, 5s);
  EXPECT_EQ(woken.load(), 3);
}

TEST_P(CloseTest, PeerClosedTwiceAndReconnected) {
  Link link(reader_options("reader"), options("owner"), path(), kBytes);
  link.owner.fill(link.remote, seed());
  EXPECT_OK(link.peer.close());
  EXPECT_OK(link.peer.close());
  EXPECT_EQ(link.session.read(whole(64)).status().reason(), Reason::kClosed);
  Peer again = must(link.engine->connect(link.owner.descriptor()));
  const std::array<const Region*, 1> own = {&link.local};
  Session session = must(again.session(own, std::span(&link.remote.desc, 1)));
  ASSERT_OK(must(session.read(whole(kBytes))).wait(5s));
  EXPECT_EQ(first_wrong(link.memory.bytes(), seed()), std::nullopt);
}

TEST_P(CloseTest, SessionOutlivesThePeerHandle) {
  Link link(reader_options("reader"), options("owner"), path(), kBytes);
  link.owner.fill(link.remote, seed());
  { const Peer gone = std::move(link.peer); }
  ASSERT_OK(must(link.session.read(whole(kBytes))).wait(5s));
  EXPECT_EQ(first_wrong(link.memory.bytes(), seed()), std::nullopt);
}

class LifeTest : public EngineTest {};

TEST_F(LifeTest, ThousandEnginesLeaveNothing) {
  { const auto warm = make_engine("warm"); }
  const size_t fds = open_fds();
  const size_t threads = running_threads();
  const int cycles = kSanitized ? 100 : 1000;
  for (int i = 0; i < cycles; ++i) {
    const auto engine = make_engine("cycle");
    const Region region = must(engine->allocate(4096));
    if (i % 100 == 0) (void)engine->close();
  }
  EXPECT_EQ(open_fds(), fds);
  EXPECT_TRUE(eventually([&] { return running_threads() == threads; }));
}

TEST_F(LifeTest, ACloseGivesBackEveryDescriptorThoughTheObjectStays) {
  OwnerProcess owner(options("owner"));
  const OwnedRegion remote = owner.allocate(65536);
  const PrivateMemory memory(65536);
  { const auto warm = make_engine("warm"); }
  const size_t fds = open_fds();
  const auto engine = make_engine("reader");
  const Region local = must(engine->register_memory(memory.data(), memory.size()));
  const std::array<const Region*, 1> own = {&local};
  std::optional<Peer> peer(must(engine->connect(owner.descriptor())));
  std::optional<Session> session(must(peer->session(own, std::span(&remote.desc, 1))));
  ASSERT_OK(must(session->read(whole(65536))).wait(5s));
  EXPECT_GT(open_fds(), fds);
  EXPECT_OK(engine->close());
  session.reset();
  peer.reset();  // The handle of a peer keeps its bell and its pidfd.
  EXPECT_EQ(open_fds(), fds);
}

TEST_F(LifeTest, TheFdOfAnEventLoopStaysReadableAfterTheClose) {
  const auto engine = make_engine("reader");
  pollfd fd{must(engine->fileno()), POLLIN, 0};
  EXPECT_OK(engine->notifications(0s).status());
  EXPECT_EQ(::poll(&fd, 1, 0), 0);
  EXPECT_OK(engine->close());
  EXPECT_EQ(::poll(&fd, 1, 0), 1);
  EXPECT_EQ(fd.revents, POLLIN);
  EXPECT_REASON(Reason::kClosed, engine->fileno().status());
}

TEST_F(LifeTest, HundredConnectionsLeaveNothing) {
  OwnerProcess owner(options("owner"));
  const OwnedRegion remote = owner.allocate(65536);
  owner.fill(remote, seed());
  const auto engine = make_engine("reader");
  const PrivateMemory memory(65536);
  const Region local = must(engine->register_memory(memory.data(), memory.size()));
  const std::array<const Region*, 1> own = {&local};
  const size_t fds = open_fds();
  for (int i = 0; i < 100; ++i) {
    Peer peer = must(engine->connect(owner.descriptor()));
    Session session = must(peer.session(own, std::span(&remote.desc, 1)));
    ASSERT_OK(must(session.read(whole(65536))).wait(5s));
  }
  EXPECT_EQ(first_wrong(memory.bytes(), seed()), std::nullopt);
  EXPECT_TRUE(eventually([&] { return open_fds() == fds; })) << open_fds() << " against " << fds;
  EXPECT_TRUE(eventually([&] { return metric(*engine, "peers") == 0; }));
  EXPECT_TRUE(eventually([&] { return metric_in(owner.metrics_text(), "inbound_peers") == 0; }));
  EXPECT_EQ(metric(*engine, "mapped_bytes"), 0);
}

TEST_F(LifeTest, OptionsThatCannotBeAreRefusedByName) {
  const auto refused = [&](auto change, const char* name) {
    EngineOptions bad = options("bad");
    change(bad);
    const Status status = Engine::create(bad).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << name;
    EXPECT_NE(status.message().find(name), std::string_view::npos) << status.message();
  };
  refused([](EngineOptions& o) { o.transports = {}; }, "transports");
  refused([](EngineOptions& o) { o.transports = {"shm", "rdma"}; }, "rdma");
  refused([](EngineOptions& o) { o.slice_bytes = 4095; }, "slice_bytes");
  refused([](EngineOptions& o) { o.max_transfers = 0; }, "max_transfers");
  refused([](EngineOptions& o) { o.max_notification_bytes = 8193; }, "max_notification_bytes");
  refused([](EngineOptions& o) { o.transfer_timeout = Duration::zero(); }, "transfer_timeout");
  refused([](EngineOptions& o) { o.heartbeat_interval = 9ms; }, "heartbeat_interval");
  refused([](EngineOptions& o) { o.name = std::string(129, 'x'); }, "name");
  EngineOptions longest = options(std::string(128, 'x'));
  longest.slice_bytes = 4096;
  longest.max_notification_bytes = 8192;
  EXPECT_OK(Engine::create(longest).status());
}

}  // namespace
}  // namespace stagelink::test
