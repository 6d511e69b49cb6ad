// Memory that goes while others use it: no stale byte is ever a success, nothing is freed under a
// reader, and nobody waits for ever.

#include <atomic>
#include <csignal>
#include <thread>

#include "integration/support/engine_test.h"
#include "integration/support/ranges.h"

namespace stagelink::test {
namespace {

constexpr uint64_t kBytes = 1 << 20;
constexpr std::byte kPoison{0xDD};

class DeregisterTest : public PathTest {};
SL_FOR_BOTH_PATHS(DeregisterTest);

TEST_P(DeregisterTest, LaterTransfersAreSuperseded) {
  Link link(reader_options("reader"), options("owner"), path(), kBytes);
  ASSERT_OK(must(link.session.read(whole(kBytes))).wait(5s));
  ASSERT_OK(link.owner.deregister(link.remote, 5s));
  link.memory.reset();
  auto transfer = link.session.read(whole(kBytes));
  const Status status = transfer.ok() ? transfer->wait(5s) : transfer.status();
  EXPECT_REASON(Reason::kSuperseded, status);
  EXPECT_EQ(status.scope(), Scope::kRegion);
  EXPECT_EQ(first_not(link.memory.bytes(), kUntouched), std::nullopt);
  const std::array<const Region*, 1> own = {&link.local};
  auto again = link.peer.session(own, std::span(&link.remote.desc, 1));
  // Over TCP only the owner knows, and says so at the first batch.
  EXPECT_REASON(Reason::kSuperseded,
                path() == Path::kTcp ? must(again->read(whole(8))).wait(5s) : again.status());
  EXPECT_REASON(Reason::kClosed, link.owner.deregister(link.remote, 5s));
}

TEST_P(DeregisterTest, RowThatIsReusedDoesNotServeTheOldDescriptor) {
  Link link(reader_options("reader"), options("owner"), path(), kBytes);
  ASSERT_OK(link.owner.deregister(link.remote, 5s));
  const OwnedRegion next = make_region(link.owner, path(), kBytes);
  ASSERT_EQ(next.desc.index, link.remote.desc.index);
  EXPECT_NE(next.desc.generation, link.remote.desc.generation);
  auto transfer = link.session.read(whole(kBytes));
  EXPECT_REASON(Reason::kSuperseded, transfer.ok() ? transfer->wait(5s) : transfer.status());
  const std::array<const Region*, 1> own = {&link.local};
  EXPECT_OK(link.peer.session(own, std::span(&next.desc, 1)).status());
}

TEST_P(DeregisterTest, LocalRegionLeavesItsSessions) {
  Link link(reader_options("reader"), options("owner"), path(), kBytes);
  ASSERT_OK(link.local.deregister());
  EXPECT_REASON(Reason::kNotRegistered, link.session.read(whole(64)).status());
  EXPECT_REASON(Reason::kClosed, link.local.deregister());
  EXPECT_TRUE(link.local.bytes().empty());
  EXPECT_EQ(metric(*link.engine, "regions"), 0);
}

// A success holds bytes of exactly one generation, and never what the memory became afterwards.
TEST_P(DeregisterTest, ReadersNeverSeeStaleBytesAsSuccess) {
  constexpr uint64_t kRead = 256 << 10;
  OwnerProcess owner(options("owner"));
  const auto engine = must(Engine::create(reader_options("reader")));
  Peer peer = must(engine->connect(owner.descriptor()));
  std::mutex mutex;
  RegionDesc current;  // Under the mutex.
  std::atomic<bool> stop{false};
  std::atomic<int> successes{0};
  std::atomic<int> superseded{0};
  const auto hammer = [&] {
    const PrivateMemory memory(kRead);
    const Region local = must(engine->register_memory(memory.data(), kRead));
    const std::array<const Region*, 1> own = {&local};
    while (!stop.load()) {
      RegionDesc desc;
      {
        const std::lock_guard lock(mutex);
        desc = current;
      }
      auto session = peer.session(own, std::span(&desc, 1));
      while (session.ok() && !stop.load()) {
        auto transfer = session->read(whole(kRead));
        const Status status = transfer.ok() ? transfer->wait(5s) : transfer.status();
        if (!status.ok()) {
          ASSERT_EQ(status.code(), Code::kSuperseded) << status.to_string();
          ++superseded;
          break;
        }
        // Generations of one row follow each other; the low byte tells them apart.
        ASSERT_EQ(first_not(memory.bytes(), static_cast<std::byte>(desc.generation & 0x7f)),
                  std::nullopt)
            << "generation " << desc.generation;
        ++successes;
      }
    }
  };
  const auto publish = [&] {
    const OwnedRegion region = make_region(owner, path(), kRead);
    owner.set(region, static_cast<std::byte>(region.desc.generation & 0x7f));
    const std::lock_guard lock(mutex);
    current = region.desc;
    return region;
  };
  OwnedRegion region = publish();
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) readers.emplace_back(hammer);
  const int rounds = kSanitized ? 20 : 60;
  for (int round = 0; round < rounds; ++round) {
    const int seen = successes.load();
    EXPECT_TRUE(eventually([&] { return successes.load() > seen; }));
    EXPECT_OK(owner.deregister(region, 5s));
    owner.set(region, kPoison);
    region = publish();
  }
  stop.store(true);
  for (std::thread& reader : readers) reader.join();
  EXPECT_GT(superseded.load(), 0);
}

TEST_P(DeregisterTest, DestroyedRegionEndsItsRegistration) {
  Link link(reader_options("reader"), options("owner"), path(), kBytes);
  link.owner.drop(link.remote);
  auto transfer = link.session.read(whole(64));
  EXPECT_REASON(Reason::kSuperseded, transfer.ok() ? transfer->wait(5s) : transfer.status());
  EXPECT_EQ(metric_in(link.owner.metrics_text(), "regions"), 0);
}

// A process that reads one region over and over; stopped at a random moment it is mostly inside.
int read_for_ever(Channel& parent) {
  const auto transport = parent.receive_text();
  const auto dir = parent.receive_text();
  const auto engine_desc = parent.receive();
  const auto region_desc = parent.receive();
  if (!transport || !dir || !engine_desc || !region_desc) return 1;
  EngineOptions options;
  options.name = "stopped";
  options.runtime_dir = *dir;
  options.transports = {*transport};
  options.copy_threads = 0;
  const auto engine = must(Engine::create(options));
  Peer peer = must(engine->connect(*engine_desc));
  const RegionDesc desc = must(RegionDesc::unpack(*region_desc));
  const PrivateMemory memory(desc.bytes);
  const Region local = must(engine->register_memory(memory.data(), memory.size()));
  const std::array<const Region*, 1> own = {&local};
  Session session = must(peer.session(own, std::span(&desc, 1)));
  parent.send("ready");
  for (;;) {
    auto transfer = session.read(whole(desc.bytes));
    const Status status = transfer.ok() ? transfer->wait() : transfer.status();
    if (status.ok()) continue;
    parent.send(status.to_string());
    return parent.receive() ? 0 : 1;
  }
}
const RoleRegistration kReadForEver("read_for_ever", &read_for_ever);

// A region of this process, and another process stopped in the middle of a copy from it.
class ReaderInsideTest : public EngineTest, public ::testing::WithParamInterface<Path> {
 protected:
  // Ends the region's registration; the answer is that of a reader that does not leave.
  Status deregister_under_a_stopped_reader() {
    Status status;
    for (int attempt = 0; attempt < 50 && status.reason() != Reason::kReaderInside; ++attempt) {
      region_.emplace(must(engine_->allocate(kBytes)));
      fill_pattern(region_->bytes(), seed());
      start_reader();
      reader_->stop();  // Mostly inside; if between two copies, once more.
      status = region_->deregister(50ms);
    }
    return status;
  }
  void start_reader() {
    reader_.emplace("read_for_ever");
    reader_->channel().send(transport_of(GetParam()));
    reader_->channel().send(runtime_dir());
    reader_->channel().send(engine_->descriptor());
    reader_->channel().send(region_->descriptor().pack());
    EXPECT_EQ(reader_->channel().receive_text(), "ready");
  }
  void close_all() {
    reader_.reset();
    region_.reset();
    engine_.reset();
  }

  void SetUp() override {
    EngineTest::SetUp();
    engine_ = make_engine("owner");
  }

  std::unique_ptr<Engine> engine_;
  std::optional<Region> region_;
  std::optional<ChildProcess> reader_;
};
INSTANTIATE_TEST_SUITE_P(Direct, ReaderInsideTest, ::testing::Values(Path::kShm, Path::kCma),
                         path_name);

TEST_P(ReaderInsideTest, StoppedReaderMakesDeregisterBusyAndKeepsTheMemory) {
  const Status status = deregister_under_a_stopped_reader();
  ASSERT_EQ(status.reason(), Reason::kReaderInside) << status.to_string();
  EXPECT_NE(status.message().find("stopped"), std::string_view::npos) << "names the peer";
  // Still ours and still there.
  EXPECT_EQ(first_wrong(region_->bytes(), seed()), std::nullopt);
  EXPECT_EQ(metric(*engine_, "regions"), 1);
  // Once the reader goes on, it sees that the region has gone, and leaves.
  reader_->resume();
  EXPECT_OK(region_->deregister(10s));
  const auto told = reader_->channel().receive_text();
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(told->find("superseded"), 0U) << *told;
  EXPECT_EQ(metric(*engine_, "regions"), 0);
  close_all();
}

TEST_P(ReaderInsideTest, KilledReaderLetsGoAtOnce) {
  ASSERT_EQ(deregister_under_a_stopped_reader().reason(), Reason::kReaderInside);
  reader_->kill_hard();
  const auto before = std::chrono::steady_clock::now();
  EXPECT_OK(region_->deregister(10s));
  EXPECT_LT(std::chrono::steady_clock::now() - before, 8s);
  close_all();
}

TEST_P(ReaderInsideTest, DestroyedRegionIsGivenBackOnceItsReaderLeaves) {
  EngineOptions hasty = options("hasty");
  hasty.deregister_timeout = 50ms;
  engine_ = must(Engine::create(hasty));
  ASSERT_EQ(deregister_under_a_stopped_reader().reason(), Reason::kReaderInside);
  region_.reset();
  EXPECT_EQ(metric(*engine_, "retiring_regions"), 1);
  EXPECT_EQ(metric(*engine_, "allocated_bytes"), kBytes);
  reader_->resume();
  EXPECT_TRUE(eventually([&] { return metric(*engine_, "retiring_regions") == 0; }));
  EXPECT_EQ(metric(*engine_, "allocated_bytes"), 0);
  EXPECT_EQ(metric(*engine_, "regions"), 0);
  close_all();
}

TEST_P(ReaderInsideTest, OtherRegionsComeAndGoMeanwhile) {
  ASSERT_EQ(deregister_under_a_stopped_reader().reason(), Reason::kReaderInside);
  for (int i = 0; i < 20; ++i) {
    Region other = must(engine_->allocate(4096));
    ASSERT_NE(other.descriptor().index % 64, region_->descriptor().index % 64);
    EXPECT_OK(other.deregister(1s));
  }
  reader_->kill_hard();
  EXPECT_OK(region_->deregister(10s));
  close_all();
}

TEST_P(ReaderInsideTest, CloseOfTheEngineIsBoundedAndSaysWhoIsInside) {
  ASSERT_EQ(deregister_under_a_stopped_reader().reason(), Reason::kReaderInside);
  Region other = must(engine_->allocate(4096));
  const auto before = std::chrono::steady_clock::now();
  (void)engine_->close(100ms);
  EXPECT_LT(std::chrono::steady_clock::now() - before, 5s);
  EXPECT_EQ(first_wrong(region_->bytes(), seed()), std::nullopt);
  close_all();
}

TEST_P(ReaderInsideTest, ASecondCloseWaitsForTheFirstWithABoundOfItsOwn) {
  Status second;
  for (int attempt = 0; attempt < 50 && second.reason() != Reason::kTimedOut; ++attempt) {
    close_all();
    engine_ = make_engine("owner");
    region_.emplace(must(engine_->allocate(kBytes)));
    start_reader();
    reader_->stop();  // Mostly inside; if between two copies, once more.
    Status first(Reason::kSystem, "never set");
    std::thread closer([&] { first = engine_->close(20s); });
    EXPECT_TRUE(eventually([&] { return engine_->fileno().status().reason() == Reason::kClosed; }));
    second = engine_->close(50ms);
    reader_->resume();
    const Status third = engine_->close(20s);
    EXPECT_OK(engine_->close(0s)) << "what has ended is not waited for";
    closer.join();
    EXPECT_OK(first);
    EXPECT_OK(third);
  }
  EXPECT_REASON(Reason::kTimedOut, second);
  close_all();
}

}  // namespace
}  // namespace stagelink::test
