// Claims that are read together: one transfer for all, an outcome for each.

#include <optional>
#include <thread>

#include <sys/eventfd.h>

#include "base/fork_guard.h"
#include "base/random.h"
#include "connector/pull/receiver/receiver.h"
#include "integration/connector/pull/pull_test.h"

namespace stagelink::test {
namespace {

constexpr size_t kClaims = 12;
constexpr uint64_t kClaimBytes = 64 << 10;

// A sender in a process of its own, and the receiving half of a connector here.
class PullReaderTest : public PullTest {
 protected:
  void open(const char* transport) {
    sender_.emplace(json(fmt::format(R"("protocol": "{}")", transport)));
    home_ = std::make_shared<pull::Home>();
    home_->options = must(pull_options(json(kReceiverRole)));
    home_->receiver = random_instance_id();
    home_->fork_token = ForkGuard::arm();
    home_->stop.reset(::eventfd(0, EFD_CLOEXEC));
    home_->context = must(zmq::Context::create(must(zmq::Library::load())));
    EngineOptions engine;  // With long heartbeats: a sender that stands still is not lost.
    engine.bind = "127.0.0.1:0";
    engine.runtime_dir = runtime_dir();
    engine.transports = {transport};
    home_->engine = must(Engine::create(engine));
    home_->pool_region = allocate(4 << 20);
    home_->pool = must(pull::Pool::create(home_->pool_region->bytes(), home_->pool_region->hold()));
    home_->stamp_region = allocate(64 * sizeof(pull::Stamp));
    home_->stamps =
        pull::StampSlots::create(home_->stamp_region->bytes(), home_->stamp_region->hold());
    receiver_.emplace(home_, memory_);
    claim_all();
  }
  void TearDown() override {
    claims_.clear();
    receiver_.reset();
    pieces_.clear();
    if (home_ != nullptr) (void)home_->engine->close();
    home_.reset();
    sender_.reset();
    PullTest::TearDown();
  }

  std::shared_ptr<const Region> allocate(uint64_t bytes) {
    return std::make_shared<const Region>(must(home_->engine->allocate(bytes)));
  }
  void claim_all() {
    std::vector<std::string> keys;
    for (size_t i = 0; i < kClaims; ++i) keys.push_back(fmt::format("k{}", i));
    std::vector<pull::GetRequest> requests;
    for (size_t i = 0; i < kClaims; ++i) {
      (void)must(sender_->put(keys[i], i, kClaimBytes));
      requests.push_back(from(sender_->address(), keys[i]));
    }
    for (auto& claim : receiver_->claim(requests, {})) {
      claims_.push_back(must(std::move(*claim)));
      pieces_.push_back(must(home_->pool->allocate(kClaimBytes, Deadline::in(1s), nullptr)));
    }
  }
  std::vector<Status> read_all(Duration timeout = 60s) {
    std::vector<pull::ReadPart> parts;
    for (const pull::Piece& piece : pieces_) parts.push_back({0, piece.bytes()});
    std::vector<pull::PartsOfClaim> reads;
    for (size_t i = 0; i < kClaims; ++i) {
      reads.push_back({claims_[i].get(), std::span(parts).subspan(i, 1)});
    }
    std::vector<Status> outcomes;
    for (auto& outcome : receiver_->read(reads, timeout)) outcomes.push_back(outcome.status);
    return outcomes;
  }
  bool is_right(size_t claim) { return !first_wrong(pieces_[claim].bytes(), claim).has_value(); }
  double transfers() { return metric(*home_->engine, "transfers_started_total"); }

  std::optional<PullPeer> sender_;
  std::shared_ptr<pull::Home> home_;
  pull::RegisteredMemory memory_;
  std::optional<pull::Receiver> receiver_;
  std::vector<std::unique_ptr<pull::ClaimState>> claims_;
  std::vector<pull::Piece> pieces_;
};

TEST_F(PullReaderTest, AllClaimsOfASenderMakeOneTransferAndTheirStampsAnother) {
  open("shm");
  const double before = transfers();
  const auto outcomes = read_all();
  for (size_t i = 0; i < kClaims; ++i) {
    EXPECT_OK(outcomes[i]);
    EXPECT_TRUE(is_right(i)) << i;
  }
  EXPECT_EQ(transfers() - before, 2);
}

TEST_F(PullReaderTest, AClaimThatCannotBeReadFailsAlone) {
  open("shm");
  claims_[3]->body.pieces.front().offset = uint64_t{1} << 40;  // As a sender may lie.
  claims_[5]->body.generation += 1;
  claims_[7]->until = Deadline::in(0s);
  const auto outcomes = read_all();
  EXPECT_REASON(Reason::kOutOfBounds, outcomes[3]);
  EXPECT_REASON(Reason::kSuperseded, outcomes[5]);
  EXPECT_REASON(Reason::kExpired, outcomes[7]);
  for (size_t i = 0; i < kClaims; ++i) {
    if (i == 3 || i == 5 || i == 7) continue;
    EXPECT_OK(outcomes[i]);
    EXPECT_TRUE(is_right(i)) << i;
  }
}

TEST_F(PullReaderTest, AClaimThatEndsMeanwhileEndsAloneAndTheOthersGoOn) {
  open("tcp");
  sender_->process().stop();
  claims_[4]->until = Deadline::in(300ms);
  std::thread waker([this, end = claims_[4]->until] {
    while (!end.passed()) std::this_thread::sleep_for(end.left());
    sender_->process().resume();
  });
  const auto outcomes = read_all();
  waker.join();
  EXPECT_REASON(Reason::kTimedOut, outcomes[4]);
  for (size_t i = 0; i < kClaims; ++i) {
    if (i == 4) continue;
    EXPECT_OK(outcomes[i]);
    EXPECT_TRUE(is_right(i)) << i;
  }
}

TEST_F(PullReaderTest, ASenderThatStandsStillEndsAllAtTheirTime) {
  open("tcp");
  sender_->process().stop();
  const auto begin = Deadline::Clock::now();
  for (const Status& outcome : read_all(300ms)) EXPECT_REASON(Reason::kTimedOut, outcome);
  EXPECT_LT(Deadline::Clock::now() - begin, 20s);
  sender_->process().resume();
}

}  // namespace
}  // namespace stagelink::test
