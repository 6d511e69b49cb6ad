// Connect, transfer, abort, kill, in random order: gauges stay flat. Two seconds each in the suite;
// STAGELINK_CHURN_SECONDS=600 makes it ten minutes.

#include <cstdlib>
#include <fstream>
#include <optional>

#include "integration/support/engine_test.h"

namespace stagelink::test {
namespace {

constexpr uint64_t kBytes = 2 << 20;
constexpr uint64_t kGrowthAllowed = 24 << 20;

std::chrono::seconds churn_time() {
  const char* const text = std::getenv("STAGELINK_CHURN_SECONDS");
  const long seconds = text == nullptr ? 0 : std::strtol(text, nullptr, 10);
  return std::chrono::seconds(seconds > 0 ? seconds : 2);
}

uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t all = 0;
  uint64_t resident = 0;
  file >> all >> resident;
  return resident * 4096;
}

// One engine here, which lives through all of it, and owners that come and go.
class ChurnTest : public PathTest {
 protected:
  void SetUp() override {
    PathTest::SetUp();
    if (IsSkipped()) return;
    engine_ = must(Engine::create(reader_options("reader")));
    local_.emplace(must(engine_->register_memory(memory_.data(), memory_.size())));
    spare_.emplace(must(engine_->register_memory(spare_memory_.data(), spare_memory_.size())));
    begin_owner();
  }
  void TearDown() override {
    local_.reset();
    spare_.reset();
    owner_.reset();
    engine_.reset();
    PathTest::TearDown();
  }

  void begin_owner() {
    owner_.reset();
    owner_.emplace(options("owner"));
    remote_ = make_region(*owner_, path(), kBytes);
    content_ = random_.next();
    owner_->fill(remote_, content_);
  }
  Session connect() { return connect_into(*local_); }
  Session connect_into(const Region& region) {
    peer_.emplace(must(engine_->connect(owner_->descriptor(), 5s)));
    const std::array<const Region*, 1> own = {&region};
    return must(peer_->session(own, std::span(&remote_.desc, 1)));
  }

  void read_all() {
    Session session = connect();
    memory_.reset();
    ASSERT_OK(must(session.read(whole(kBytes), 10s)).wait());
    ASSERT_EQ(first_wrong(memory_.bytes(), content_), std::nullopt);
  }
  void write_all() {
    Session session = connect();
    memory_.reset();
    ASSERT_OK(must(session.write(whole(kBytes), 10s)).wait());
    owner_->fill(remote_, content_);
  }
  void abort() {
    Session session = connect();
    Transfer transfer = must(session.read(whole(kBytes), 10s));
    transfer.cancel();
    const Status ended = transfer.status();
    EXPECT_TRUE(ended.ok() || ended.code() == Code::kCancelled) << ended.to_string();
  }
  void let_go() {
    // Handle, session and peer are dropped under way; the bytes may come later.
    Session session = connect_into(*spare_);
    must(session.read(whole(kBytes), 10s));
    peer_.reset();
  }
  void kill_under_way() {
    Session session = connect();
    Transfer transfer = must(session.read(whole(kBytes), 10s));
    owner_->process().kill_hard();
    const Status ended = transfer.wait(10s);
    EXPECT_TRUE(ended.ok() || ended.scope() == Scope::kPeer) << ended.to_string();
    begin_owner();
  }

  void step(uint64_t which) {
    switch (which) {
      case 0: return kill_under_way();
      case 1: return abort();
      case 2: return let_go();
      case 3: return write_all();
      default: return read_all();
    }
  }
  void settle() {
    peer_.reset();
    EXPECT_TRUE(eventually([&] { return metric(*engine_, "peers") == 0; }));
    EXPECT_TRUE(eventually([&] { return metric(*engine_, "transfers_in_flight") == 0; }));
  }

  SplitMix64 random_{seed()};
  PrivateMemory memory_{kBytes};
  PrivateMemory spare_memory_{kBytes};
  std::unique_ptr<Engine> engine_;
  std::optional<Region> local_;
  std::optional<Region> spare_;
  std::optional<OwnerProcess> owner_;
  std::optional<Peer> peer_;
  OwnedRegion remote_;
  uint64_t content_ = 0;
};
SL_FOR_BOTH_PATHS(ChurnTest);

TEST_P(ChurnTest, GaugesAreFlat) {
  for (uint64_t which = 0; which < 6; ++which) step(which);
  settle();
  const size_t fds = open_fds();
  const size_t threads = running_threads();
  const uint64_t resident = resident_bytes();

  const Deadline deadline = Deadline::in(churn_time());
  uint64_t steps = 0;
  for (; !deadline.passed() && !HasFailure(); ++steps) step(random_.below(8));
  settle();
  EXPECT_GT(steps, 0U);
  EXPECT_TRUE(eventually([&] { return open_fds() <= fds + 2; })) << open_fds() << " from " << fds;
  EXPECT_LE(running_threads(), threads + 1);  // A copy thread may have been started since.
  EXPECT_EQ(metric(*engine_, "mapped_bytes"), 0);
  EXPECT_EQ(metric(*engine_, "duplicate_completions_total"), 0);
  if (kSanitized) return;  // Freed memory is kept for a while.
  EXPECT_LE(resident_bytes(), resident + kGrowthAllowed) << "after " << steps << " steps";
}

}  // namespace
}  // namespace stagelink::test
