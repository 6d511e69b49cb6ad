// Sizes beyond 2 and 4 GiB (T36). Memory that large is address space only: see AliasedMemory.

#include <atomic>
#include <csignal>
#include <thread>

#include <pthread.h>

#include "integration/support/engine_test.h"

namespace stagelink::test {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr uint64_t kTail = 64 << 10;
// Sanitized copies are slow, and their shadow of this much memory is real.
constexpr uint64_t kBody = kSanitized ? 64 << 20 : 4 * kGiB;

void ignore_signal(int) {}

// Interrupts one thread again and again, so that its system calls come back with EINTR.
class SignalStorm {
 public:
  explicit SignalStorm(pthread_t target) {
    struct sigaction action {};
    action.sa_handler = &ignore_signal;  // Without SA_RESTART.
    ::sigaction(SIGUSR1, &action, &before_);
    thread_ = std::thread([this, target] {
      while (!stop_.load()) {
        ::pthread_kill(target, SIGUSR1);
        std::this_thread::sleep_for(1ms);
      }
    });
  }
  ~SignalStorm() {
    stop_.store(true);
    thread_.join();
    ::sigaction(SIGUSR1, &before_, nullptr);
  }
  SignalStorm(const SignalStorm&) = delete;
  SignalStorm& operator=(const SignalStorm&) = delete;

 private:
  struct sigaction before_ {};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

using BigTest = EngineTest;

// By socket, and by a single call of the kernel's copy, which moves 2 GiB at most at a time.
class BigPrivateTest : public EngineTest, public ::testing::WithParamInterface<Path> {};
INSTANTIATE_TEST_SUITE_P(Private, BigPrivateTest,
                         ::testing::Values(Path::kCma, Path::kUnix, Path::kTcp), path_name);

TEST_P(BigPrivateTest, RegionBeyondFourGiBArrivesToItsTail) {
  if (GetParam() == Path::kCma && !kernel_copies()) GTEST_SKIP() << "no process_vm_readv here";
  EngineOptions reader = options("reader");
  reader.transports = {transport_of(GetParam())};
  reader.slice_bytes = kGiB;
  OwnerProcess owner(options("owner"));
  const OwnedRegion remote = owner.register_aliased(kBody, kTail);
  ASSERT_EQ(remote.desc.bytes, kBody + kTail);
  owner.fill(remote, seed(), kBody);
  AliasedMemory memory(kBody, kTail);
  std::fill(memory.tail().begin(), memory.tail().end(), kUntouched);
  const auto engine = must(Engine::create(reader));
  const Region local = must(engine->register_memory(memory.bytes().data(), memory.bytes().size()));
  const std::array<const Region*, 1> own = {&local};
  Peer peer = must(engine->connect(owner.descriptor()));
  Session session = must(peer.session(own, std::span(&remote.desc, 1)));
  Transfer transfer = must(session.read(whole(kBody + kTail), 50s));
  ASSERT_OK(transfer.wait(50s));
  EXPECT_EQ(transfer.bytes(), kBody + kTail);
  EXPECT_EQ(first_wrong(memory.tail(), seed()), std::nullopt);
}

TEST_F(BigTest, OffsetsBeyondFourGiBAreNotCutShort) {
  OwnerProcess owner(options("owner"));
  const OwnedRegion remote = owner.register_aliased(kBody, kTail);
  owner.fill(remote, seed(), kBody);
  Link small(options("reader"), options("other"), Path::kUnix, kTail);
  const std::array<const Region*, 1> own = {&small.local};
  Peer peer = must(small.engine->connect(owner.descriptor()));
  Session session = must(peer.session(own, std::span(&remote.desc, 1)));
  const StridedRange range{.remote_offset = kBody + 8, .bytes = kTail - 8, .count = 1};
  ASSERT_OK(must(session.read(range)).wait(10s));
  EXPECT_EQ(first_wrong(small.memory.bytes().first(kTail - 8), seed(), 8), std::nullopt);
  EXPECT_EQ(first_not(small.memory.bytes().last(8), kUntouched), std::nullopt);
  // And back: only the tail changes.
  fill_pattern(small.memory.bytes(), seed() + 1);
  ASSERT_OK(must(session.write({.remote_offset = kBody, .bytes = kTail, .count = 1})).wait(10s));
  EXPECT_EQ(owner.first_wrong(remote, seed() + 1, kBody), kNone);
}

TEST_F(BigTest, ShareableRegionBeyondFourGiBIsMappedAndRead) {
  EngineOptions sparse = options("owner");
  OwnerProcess owner(sparse);
  const auto engine = make_engine("reader");
  // The room of the system decides; nobody touches the body.
  AllocateOptions none;
  none.prefault = Effort::kOff;
  auto pool = engine->allocate(kBody + kTail, none);
  if (!pool.ok() && pool.status().code() == Code::kNoSpace) {
    GTEST_SKIP() << pool.status().to_string();
  }
  ASSERT_OK(pool.status());
  std::fill(pool->bytes().end() - kTail, pool->bytes().end(), kUntouched);
  const OwnedRegion remote = owner.allocate(kTail);
  owner.fill(remote, seed());
  const std::array<const Region*, 1> own = {&*pool};
  Peer peer = must(engine->connect(owner.descriptor()));
  Session session = must(peer.session(own, std::span(&remote.desc, 1)));
  ASSERT_OK(must(session.read({.local_offset = kBody, .bytes = kTail, .count = 1})).wait(10s));
  EXPECT_EQ(first_wrong(pool->bytes().last(kTail), seed()), std::nullopt);
  EXPECT_EQ(pool->bytes()[kBody - 1], std::byte{0});
}

// T36: short writes all the way, and calls that are interrupted.
TEST_P(BigPrivateTest, InterruptedAndShortWritesChangeNothing) {
  if (!is_socket(GetParam())) GTEST_SKIP() << "a matter of sockets";
  constexpr uint64_t kBytes = 24 << 20;
  EngineOptions socket_only = options("reader");
  socket_only.transports = {transport_of(GetParam())};
  Link link(socket_only, options("owner"), GetParam(), kBytes);
  link.owner.fill(link.remote, seed());
  const SignalStorm storm(::pthread_self());
  for (int round = 0; round < 5; ++round) {
    link.memory.reset();
    ASSERT_OK(must(link.session.read(whole(kBytes))).wait(20s));
    ASSERT_EQ(first_wrong(link.memory.bytes(), seed()), std::nullopt);
    // Sleeping calls too come back with the full outcome.
    ASSERT_TRUE(must(link.engine->notifications(3ms)).empty());
  }
}

}  // namespace
}  // namespace stagelink::test
