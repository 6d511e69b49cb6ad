// How transfers end: wait, poll, cancel, deadline, and letting go.

#include <algorithm>
#include <chrono>

#include "integration/support/engine_test.h"
#include "integration/support/ranges.h"
#include "integration/support/unseen.h"

namespace stagelink::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kBig = kSanitized ? uint64_t{256} << 20 : uint64_t{1} << 30;

// A region whose bytes alias a small window on either side: big in time, not in memory.
class DeadlineTest : public PathTest {
 protected:
  Link link(uint64_t bytes) const {
    return Link(reader_options("reader"), options("owner"), path(), bytes);
  }
  // One batch of kBig bytes over a region of 16 MiB: it is read again and again.
  static Ranges long_work(uint64_t region_bytes) {
    Ranges ranges;
    const uint64_t piece = 1 << 20;
    for (uint64_t at = 0; at < kBig; at += piece) {
      // Not neighbours, so that the list stays long.
      const uint64_t place = at / piece * 3 * piece % region_bytes;
      ranges.add(place, place, piece);
    }
    return ranges;
  }
  static constexpr uint64_t kRegion = 16 << 20;
};
SL_FOR_BOTH_PATHS(DeadlineTest);

TEST_P(DeadlineTest, CancelReturnsSoonAndLeavesNoWriterBehind) {
  Link link = this->link(kRegion);
  link.owner.fill(link.remote, seed());
  const Ranges work = long_work(kRegion);
  for (int round = 0; round < 3; ++round) {
    link.memory.reset();
    Transfer transfer = must(link.session.read(work.list()));
    // Let it get somewhere first.
    {
      const UnseenByTsan unseen;  // A peek at memory that is being written.
      // One byte of the pattern may look untouched.
      const auto has_begun = [first = link.memory.bytes().first(16)] {
        return std::any_of(first.begin(), first.end(),
                           [](std::byte byte) { return byte != kUntouched; });
      };
      (void)eventually([&] { return round == 0 || has_begun(); }, 1s);
    }
    const auto before = Clock::now();
    const TransferPhase phase = transfer.cancel();
    const auto took = Clock::now() - before;
    // The memory is ours again: what we write stays.
    fill_pattern(link.memory.bytes(), seed() + 7);
    EXPECT_LT(took, 3s);
    ASSERT_EQ(phase, TransferPhase::kFailed) << "the batch was too short for this machine";
    EXPECT_REASON(Reason::kCancelled, transfer.status());
    EXPECT_REASON(Reason::kCancelled, transfer.wait(1s));
    // A second batch keeps both sides busy for a while; then all bytes still are ours.
    const Ranges more = long_work(kRegion);
    ASSERT_OK(link.peer.notify(bytes_of("x")));
    ASSERT_EQ(link.owner.take(5s).size(), 1U);
    EXPECT_EQ(first_wrong(link.memory.bytes(), seed() + 7), std::nullopt);
  }
  EXPECT_EQ(metric(*link.engine, "transfers_in_flight"), 0);
  // The next transfer is not disturbed by what was cancelled.
  ASSERT_OK(must(link.session.read(whole(kRegion))).wait(20s));
  EXPECT_EQ(first_wrong(link.memory.bytes(), seed()), std::nullopt);
}

TEST_P(DeadlineTest, CancelledWriteStopsAtTheOwnerToo) {
  Link link = this->link(kRegion);
  fill_pattern(link.memory.bytes(), seed());
  Transfer transfer = must(link.session.write(long_work(kRegion).list()));
  ASSERT_EQ(transfer.cancel(), TransferPhase::kFailed);
  // What follows on the same connection comes after all of it.
  fill_pattern(link.memory.bytes(), seed() + 1);
  ASSERT_OK(must(link.session.write(whole(kRegion))).wait(20s));
  EXPECT_EQ(link.owner.first_wrong(link.remote, seed() + 1), kNone);
}

TEST_P(DeadlineTest, CancelAfterTheEndTellsThatItHadSucceeded) {
  Link link = this->link(65536);
  link.owner.fill(link.remote, seed());
  Transfer transfer = must(link.session.read(whole(65536)));
  ASSERT_OK(transfer.wait(5s));
  EXPECT_EQ(transfer.cancel(), TransferPhase::kSucceeded);
  EXPECT_OK(transfer.status());
  EXPECT_OK(transfer.wait(Duration::zero()));
}

TEST_P(DeadlineTest, CancelTwiceIsCancelOnce) {
  Link link = this->link(kRegion);
  Transfer transfer = must(link.session.read(long_work(kRegion).list()));
  EXPECT_EQ(transfer.cancel(), TransferPhase::kFailed);
  EXPECT_EQ(transfer.cancel(), TransferPhase::kFailed);
  EXPECT_EQ(metric(*link.engine, "failures_total", "cancelled"), 1);
}

TEST_P(DeadlineTest, WaitPastItsTimeoutCancels) {
  Link link = this->link(kRegion);
  Transfer transfer = must(link.session.read(long_work(kRegion).list()));
  const auto before = Clock::now();
  EXPECT_REASON(Reason::kTimedOut, transfer.wait(2ms));
  EXPECT_LT(Clock::now() - before, 5s);
  EXPECT_EQ(transfer.poll(), TransferPhase::kFailed);
  link.memory.reset();
  EXPECT_EQ(first_not(link.memory.bytes(), kUntouched), std::nullopt);
}

TEST_P(DeadlineTest, DeadlineOfTheSubmissionEndsEveryWait) {
  Link link = this->link(kRegion);
  Transfer transfer = must(link.session.read(long_work(kRegion).list(), 2ms));
  const auto before = Clock::now();
  EXPECT_REASON(Reason::kTimedOut, transfer.wait());
  EXPECT_LT(Clock::now() - before, 5s);
}

TEST_P(DeadlineTest, PollNeverCancelsAndEndsWithTheBatch) {
  Link link = this->link(kRegion);
  link.owner.fill(link.remote, seed());
  Transfer transfer = must(link.session.read(whole(kRegion)));
  EXPECT_TRUE(eventually([&] { return transfer.poll() != TransferPhase::kRunning; }));
  EXPECT_EQ(transfer.poll(), TransferPhase::kSucceeded);
  EXPECT_EQ(first_wrong(link.memory.bytes(), seed()), std::nullopt);
}

TEST_P(DeadlineTest, PollAloneFinishesABatchWithoutCopyThreads) {
  EngineOptions alone = reader_options("reader");
  alone.copy_threads = 0;
  Link link(alone, options("owner"), path(), kRegion);
  link.owner.fill(link.remote, seed());
  Transfer transfer = must(link.session.read(whole(kRegion)));
  EXPECT_TRUE(eventually([&] { return transfer.poll(1ms) != TransferPhase::kRunning; }));
  EXPECT_OK(transfer.status());
  EXPECT_EQ(first_wrong(link.memory.bytes(), seed()), std::nullopt);
}

TEST_P(DeadlineTest, PollSeesTheDeadlineOfABatchThatNobodyFinishes) {
  EngineOptions alone = reader_options("reader");
  alone.copy_threads = 0;
  Link link(alone, options("owner"), path(), kRegion);
  Transfer transfer = must(link.session.read(long_work(kRegion).list(), 5ms));
  EXPECT_TRUE(eventually([&] { return transfer.poll() != TransferPhase::kRunning; }, 20s));
  EXPECT_REASON(Reason::kTimedOut, transfer.status());
}

TEST_P(DeadlineTest, DroppedTransferStillCompletes) {
  Link link = this->link(kRegion);
  link.owner.fill(link.remote, seed());
  { const Transfer dropped = must(link.session.read(whole(kRegion))); }
  ASSERT_TRUE(eventually([&] { return metric(*link.engine, "transfers_succeeded_total") == 1; }));
  const UnseenByTsan unseen;  // A counter orders nothing.
  EXPECT_EQ(first_wrong(link.memory.bytes(), seed()), std::nullopt);
}

TEST_P(DeadlineTest, DroppedTransferCompletesWithoutCopyThreads) {
  EngineOptions alone = reader_options("reader");
  alone.copy_threads = 0;
  Link link(alone, options("owner"), path(), kRegion);
  link.owner.fill(link.remote, seed());
  { const Transfer dropped = must(link.session.read(whole(kRegion))); }
  ASSERT_TRUE(eventually([&] { return metric(*link.engine, "transfers_succeeded_total") == 1; }));
  const UnseenByTsan unseen;  // A counter orders nothing.
  EXPECT_EQ(first_wrong(link.memory.bytes(), seed()), std::nullopt);
}

TEST_P(DeadlineTest, DroppedTransferEndsAtItsDeadline) {
  Link link = this->link(kRegion);
  { const Transfer dropped = must(link.session.read(long_work(kRegion).list(), 5ms)); }
  EXPECT_TRUE(eventually([&] { return metric(*link.engine, "transfers_in_flight") == 0; }, 20s));
  EXPECT_EQ(metric(*link.engine, "transfers_succeeded_total"), 0);
  // Counted right after the end. A further data connection that was not made in these 5 ms counts
  // too.
  EXPECT_TRUE(
      eventually([&] { return metric(*link.engine, "failures_total", "timed_out") >= 1; }, 20s));
}

// T27: ends of all kinds from several threads; each transfer ends once, with one outcome.
TEST_P(DeadlineTest, RacingCancelWaitAndPollAgreeOnOneOutcome) {
  Link link = this->link(1 << 20);
  link.owner.fill(link.remote, seed());
  const int rounds = kSanitized ? 100 : 300;
  for (int round = 0; round < rounds; ++round) {
    Transfer transfer = must(link.session.read(whole(1 << 20)));
    std::atomic<int> ready{0};
    const auto at_once = [&] {
      ready.fetch_add(1);
      while (ready.load() < 3) std::this_thread::yield();
    };
    Status waited;
    TransferPhase polled = TransferPhase::kRunning;
    TransferPhase cancelled = TransferPhase::kRunning;
    std::thread waiter([&] { at_once(), waited = transfer.wait(5s); });
    std::thread poller([&] {
      at_once();
      while ((polled = transfer.poll()) == TransferPhase::kRunning) {
      }
    });
    at_once();
    cancelled = transfer.cancel();
    waiter.join();
    poller.join();
    ASSERT_EQ(polled, cancelled);
    ASSERT_EQ(waited.ok(), cancelled == TransferPhase::kSucceeded) << waited.to_string();
    if (waited.ok()) {
      ASSERT_EQ(first_wrong(link.memory.bytes(), seed()), std::nullopt);
    } else {
      ASSERT_EQ(waited.reason(), Reason::kCancelled);
    }
  }
  const double succeeded = metric(*link.engine, "transfers_succeeded_total");
  const double failed = metric(*link.engine, "failures_total", "cancelled");
  EXPECT_EQ(succeeded + failed, rounds);
}

}  // namespace
}  // namespace stagelink::test
