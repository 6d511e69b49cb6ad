// Many threads on one engine, doing everything at once (T34). For ThreadSanitizer above all.

#include <atomic>
#include <mutex>
#include <thread>

#include "integration/support/engine_test.h"
#include "integration/support/ranges.h"

namespace stagelink::test {
namespace {

constexpr uint64_t kBytes = 256 << 10;

// A step of one thread; throws what it finds wrong.
class Busy {
 public:
  Busy(Engine& engine, Engine& owner, uint64_t seed)
      : engine_(engine), owner_(owner), seed_(seed), random_(seed), memory_(kBytes) {}

  // Connects, reads from both kinds of memory, checks, and lets everything go.
  void round() {
    Peer peer = must(engine_.connect(owner_.descriptor()));
    Region pool = must(owner_.allocate(kBytes));
    const PrivateMemory hidden(kBytes);
    const Region registered = must(owner_.register_memory(hidden.data(), kBytes));
    fill_pattern(pool.bytes(), seed_);
    fill_pattern(hidden.bytes(), seed_ + 1);
    const Region local = must(engine_.register_memory(memory_.data(), kBytes));
    const std::array<const Region*, 1> own = {&local};
    const std::array<RegionDesc, 2> remote = {pool.descriptor(), registered.descriptor()};
    Session session = must(peer.session(own, remote));
    for (uint32_t source = 0; source < 2; ++source) read(session, source);
    (void)engine_.metrics_text();
    (void)session.explain();
    const Status noted = peer.notify(bytes_of("round"));
    if (!noted.ok() && noted.reason() != Reason::kRingFull) fail(noted);
    (void)must(owner_.notifications(Duration::zero(), 8));
    if (const Status ended = pool.deregister(); !ended.ok()) fail(ended);
    const Status late = session.read(whole(64)).status();
    if (!late.ok() && late.code() != Code::kSuperseded) fail(late);
  }

 private:
  [[noreturn]] static void fail(const Status& status) {
    throw std::runtime_error(status.to_string());
  }
  void read(Session& session, uint32_t source) {
    memory_.reset();
    StridedRange range = whole(kBytes);
    range.remote_region = source;
    Transfer transfer = must(session.read(range));
    switch (random_.below(4)) {
      case 0:
        if (transfer.cancel() == TransferPhase::kFailed) return;
        break;
      case 1:
        while (transfer.poll() == TransferPhase::kRunning) std::this_thread::yield();
        break;
      default: break;
    }
    if (const Status status = transfer.wait(20s); !status.ok()) fail(status);
    if (first_wrong(memory_.bytes(), seed_ + source)) throw std::runtime_error("a wrong byte");
  }

  Engine& engine_;
  Engine& owner_;
  const uint64_t seed_;
  SplitMix64 random_;
  const PrivateMemory memory_;
};

class ThreadsTest : public EngineTest {};

TEST_F(ThreadsTest, EightThreadsDoEverythingAtOnce) {
  const auto engine = make_engine("reader");
  const auto owner = make_engine("owner");
  const Deadline until = Deadline::in(kSanitized ? 5s : 4s);
  std::atomic<int> rounds{0};
  std::mutex mutex;
  std::string wrong;
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      try {
        Busy busy(*engine, *owner, seed() + 100 * i);
        while (!until.passed()) {
          busy.round();
          ++rounds;
        }
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        wrong += std::string(error.what()) + "\n";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, "");
  EXPECT_GE(rounds.load(), 8);
  EXPECT_EQ(metric(*engine, "transfers_in_flight"), 0);
  EXPECT_EQ(metric(*engine, "regions"), 0);
  EXPECT_TRUE(eventually([&] {
    return metric(*engine, "peers") == 0 && metric(*owner, "inbound_peers") == 0 &&
           metric(*owner, "regions") == 0 && metric(*engine, "mapped_bytes") == 0;
  }));
}

// More threads than the peer page has lanes, all reading from one peer through one session.
TEST_F(ThreadsTest, MoreThreadsThanLanesShareOneSession) {
  Link link(options("reader"), options("owner"), Path::kShm, kBytes);
  link.owner.fill(link.remote, seed());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  std::vector<PrivateMemory> memories;
  std::vector<Region> regions;
  std::vector<const Region*> own;
  constexpr size_t kThreads = 24;
  for (size_t i = 0; i < kThreads; ++i) memories.emplace_back(kBytes);
  for (const PrivateMemory& memory : memories) {
    regions.push_back(must(link.engine->register_memory(memory.data(), kBytes)));
  }
  for (const Region& region : regions) own.push_back(&region);
  Session session = must(link.peer.session(own, std::span(&link.remote.desc, 1)));
  for (uint32_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      StridedRange range = whole(kBytes);
      range.local_region = i;
      for (int round = 0; round < (kSanitized ? 10 : 40); ++round) {
        memories[i].reset();
        auto transfer = session.read(range);
        const Status status = transfer.ok() ? transfer->wait(20s) : transfer.status();
        if (!status.ok() || first_wrong(memories[i].bytes(), seed())) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST_F(ThreadsTest, CloseRacesWithEverything) {
  const int rounds = kSanitized ? 5 : 20;
  for (int round = 0; round < rounds; ++round) {
    const auto owner = make_engine("owner");
    const auto engine = make_engine("reader");
    std::atomic<int> started{0};
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        try {
          Busy busy(*engine, *owner, seed() + i);
          for (;;) {
            started.fetch_add(1);
            busy.round();
          }
        } catch (const std::exception&) {
          // Some call has found the engine closed; which one is a matter of time.
        }
      });
    }
    EXPECT_TRUE(eventually([&] { return started.load() > 4; }));
    (void)(round % 2 == 0 ? engine : owner)->close();
    (void)(round % 2 == 0 ? owner : engine)->close();
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace stagelink::test
