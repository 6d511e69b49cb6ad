// A peer that comes back at the same address is another peer (T25).

#include <atomic>
#include <chrono>
#include <filesystem>
#include <set>
#include <thread>

#include "base/log.h"
#include "base/runtime_dir.h"
#include "integration/support/engine_test.h"

namespace stagelink::test {
namespace {

constexpr uint64_t kBytes = 1 << 20;

class RestartTest : public PathTest {
 protected:
  // The fixed port that the owner takes again and again.
  EngineOptions owner_at(const std::string& address) const {
    EngineOptions owner = options("owner");
    owner.bind = address;
    return owner;
  }
};
SL_FOR_BOTH_PATHS(RestartTest);

TEST_P(RestartTest, TwentyLivesAtOnePort) {
  const auto engine = must(Engine::create(reader_options("reader")));
  const PrivateMemory memory(2 * kBytes);
  const Region local = must(engine->register_memory(memory.data(), memory.size()));
  const std::array<const Region*, 1> own = {&local};
  std::optional<OwnerProcess> owner(options("owner"));
  const std::string address = owner->address();
  std::optional<RegionDesc> old_region;
  std::vector<std::byte> old_descriptor;
  size_t fds = 0;
  const uint64_t rounds = kSanitized ? 5 : 20;
  for (uint64_t round = 0; round < rounds; ++round) {
    // Other sizes, other places.
    const uint64_t bytes = kBytes + round % 3 * 4096;
    const OwnedRegion remote = make_region(*owner, path(), bytes);
    owner->fill(remote, seed() + round);
    Peer peer = must(engine->connect(address, 2s));
    if (old_region) {
      // What a former life has said is no use any more, and says so.
      const Status stale = peer.session(own, std::span(&*old_region, 1)).status();
      EXPECT_EQ(stale.code(), Code::kIncompatible) << stale.to_string();
      EXPECT_NE(stale.message().find(peer.instance().to_string()), std::string_view::npos);
      EXPECT_NE(stale.message().find(old_region->instance.to_string()), std::string_view::npos);
      const Status gone = engine->connect(old_descriptor, 2s).status();
      EXPECT_EQ(gone.scope(), Scope::kPeer) << gone.to_string();
    }
    Session session = must(peer.session(own, std::span(&remote.desc, 1)));
    memory.reset();
    ASSERT_OK(must(session.read(whole(bytes), 5s)).wait());
    ASSERT_EQ(first_wrong(memory.bytes().first(bytes), seed() + round), std::nullopt);
    old_region = remote.desc;
    old_descriptor = owner->descriptor();
    // Every other life ends in the middle of a transfer.
    std::optional<Transfer> in_flight;
    if (round % 2 == 1) in_flight.emplace(must(session.read(whole(bytes), 5s)));
    owner->process().kill_hard();
    if (in_flight) {
      const Status ended = in_flight->wait(2s);
      EXPECT_TRUE(ended.ok() || ended.code() == Code::kPeerLost) << ended.to_string();
    }
    owner.emplace(owner_at(address));
    EXPECT_TRUE(eventually([&] { return peer.phase() == PeerPhase::kLost; }));
    EXPECT_EQ(session.read(whole(64)).status().code(), Code::kPeerLost);
    // Flat from life to life, once the loop has let go of the last one.
    if (round == 1) fds = open_fds();
    if (round > 1) {
      EXPECT_TRUE(eventually([&] { return open_fds() <= fds + 2; })) << round;
    }
  }
  owner.reset();
  EXPECT_TRUE(eventually([&] { return metric(*engine, "peers") == 0; }));
  EXPECT_EQ(metric(*engine, "mapped_bytes"), 0);
}

// The other way round: the owner lives, readers come and go.
TEST_P(RestartTest, TwentyLivesOfAReader) {
  OwnerProcess owner(options("owner"));
  const OwnedRegion remote = make_region(owner, path(), kBytes);
  owner.fill(remote, seed());
  const uint64_t rounds = kSanitized ? 5 : 20;
  for (uint64_t round = 0; round < rounds; ++round) {
    OwnerProcess reader(reader_options("reader"));
    ASSERT_OK(reader.connect(owner.descriptor()));
    const OwnedRegion own = reader.register_memory(kBytes);
    ASSERT_OK(reader.read(own, remote.desc, kBytes));
    ASSERT_EQ(reader.first_wrong(own, seed()), kNone);
    reader.process().kill_hard();
  }
  EXPECT_TRUE(eventually([&] { return metric_in(owner.metrics_text(), "inbound_peers") == 0; }));
  EXPECT_OK(owner.deregister(remote, 2s));
}

// Promise: a dead engine's entries are reclaimed by the next one, and never a live one's.
using RuntimeDirTest = EngineTest;

TEST_F(RuntimeDirTest, NextEngineReclaimsWhatAKilledOneLeft) {
  const auto entries = [&] {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(runtime_dir())) {
      names.insert(entry.path().filename().string());
    }
    return names;
  };
  OwnerProcess alive(options("alive"));
  const auto of_alive = entries();
  EXPECT_EQ(of_alive.size(), 2U);  // Socket and counters.
  OwnerProcess stopped(options("stopped"));
  stopped.process().stop();
  const auto of_living = entries();
  {
    OwnerProcess killed(options("killed"));
    EXPECT_EQ(entries().size(), 6U);
    killed.process().kill_hard();
  }
  EXPECT_EQ(entries().size(), 6U);
  {
    const auto next = make_engine("next");
    EXPECT_EQ(entries().size(), 6U);  // Its own two instead of the dead one's.
    for (const std::string& name : of_living) EXPECT_TRUE(entries().contains(name)) << name;
  }
  EXPECT_EQ(entries(), of_living);
  stopped.process().resume();
  EXPECT_OK(stopped.close());
  EXPECT_OK(alive.close());
  EXPECT_TRUE(!std::filesystem::exists(runtime_dir()) || entries().empty());
}

TEST_F(RuntimeDirTest, AnEngineStartsAlsoWhileOthersRemoveTheEmptyDirectory) {
  set_log_level(LogLevel::kError);  // Each time that it is removed is a warning.
  constexpr int kRemovals = 50;     // While one engine starts: fewer than it tries again.
  std::atomic<bool> done{false};
  std::atomic<int> removals{kRemovals};
  std::thread closing([&] {
    while (!done.load()) {
      if (removals.load() == kRemovals) continue;
      remove_if_empty(runtime_dir());
      removals.fetch_add(1);
    }
  });
  for (int round = 0; round < (kSanitized ? 20 : 50); ++round) {
    removals.store(0);
    const auto engine = Engine::create(options("one"));
    EXPECT_OK(engine.status());
    EXPECT_TRUE(!engine.ok() || std::filesystem::exists(runtime_dir()));
  }
  done.store(true);
  closing.join();
  set_log_level(LogLevel::kWarning);
}

}  // namespace
}  // namespace stagelink::test
