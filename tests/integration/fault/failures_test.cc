// Each failure is counted once, under its own reason, and told to the caller with the same (T47).

#include "integration/support/engine_test.h"
#include "integration/support/ranges.h"

namespace stagelink::test {
namespace {

// All series of stagelink_failures_total that are not 0, as "reason=count".
std::string failures(const Engine& engine) {
  std::string out;
  for (int i = 1; i < kReasonCount; ++i) {
    const std::string name(reason_name(static_cast<Reason>(i)));
    if (const double count = metric(engine, "failures_total", name); count > 0) {
      out += name + "=" + std::to_string(static_cast<int>(count)) + " ";
    }
  }
  return out;
}

class FailuresTest : public PathTest {};
SL_FOR_BOTH_PATHS(FailuresTest);

TEST_P(FailuresTest, EachCauseRaisesExactlyItsOwnSeries) {
  constexpr uint64_t kBytes = 4 << 20;
  Link link(reader_options("reader"), options("owner"), path(), kBytes);
  Ranges work;
  for (uint64_t i = 0; i < 1024; ++i) work.add(i * 3 % 4 << 20, i * 3 % 4 << 20, 1 << 20);
  EXPECT_EQ(failures(*link.engine), "");
  ASSERT_OK(must(link.session.read(whole(kBytes))).wait(5s));
  EXPECT_EQ(failures(*link.engine), "");

  EXPECT_REASON(Reason::kOutOfBounds, link.session.read(whole(kBytes + 1)).status());
  EXPECT_EQ(failures(*link.engine), "out_of_bounds=1 ");
  EXPECT_EQ(must(link.session.read(work.list())).cancel(), TransferPhase::kFailed);
  EXPECT_EQ(failures(*link.engine), "out_of_bounds=1 cancelled=1 ");
  EXPECT_REASON(Reason::kTimedOut, must(link.session.read(work.list(), 5ms)).wait());
  EXPECT_EQ(failures(*link.engine), "out_of_bounds=1 timed_out=1 cancelled=1 ");
  EXPECT_REASON(Reason::kRefused, link.engine->connect("127.0.0.1:1", 1s).status());
  EXPECT_EQ(failures(*link.engine), "out_of_bounds=1 timed_out=1 cancelled=1 refused=1 ");
  ASSERT_OK(link.owner.deregister(link.remote, 5s));
  auto stale = link.session.read(whole(64));
  EXPECT_REASON(Reason::kSuperseded, stale.ok() ? stale->wait(5s) : stale.status());
  EXPECT_EQ(failures(*link.engine),
            "out_of_bounds=1 superseded=1 timed_out=1 cancelled=1 refused=1 ");
}

TEST_P(FailuresTest, HistogramsAndByteCountersCountSuccessesOnly) {
  constexpr uint64_t kBytes = 1 << 20;
  Link link(reader_options("reader"), options("owner"), path(), kBytes);
  ASSERT_OK(must(link.session.read(whole(kBytes))).wait(5s));
  ASSERT_OK(must(link.session.write(whole(1000))).wait(5s));
  ASSERT_OK(link.owner.deregister(link.remote, 5s));
  auto stale = link.session.read(whole(kBytes));
  EXPECT_REASON(Reason::kSuperseded, stale.ok() ? stale->wait(5s) : stale.status());
  EXPECT_EQ(metric(*link.engine, "read_bytes_total"), kBytes);
  EXPECT_EQ(metric(*link.engine, "written_bytes_total"), 1000);
  EXPECT_EQ(metric(*link.engine, "transfers_succeeded_total"), 2);
  EXPECT_EQ(metric(*link.engine, "transfer_size_bytes_count"), 2);
  EXPECT_EQ(metric(*link.engine, "transfer_duration_seconds_count"), 2);
  EXPECT_EQ(metric(*link.engine, "transfer_size_bytes_sum"), kBytes + 1000);
}

TEST_P(FailuresTest, LostPeerIsOneFailureOfThePeerAndOneOfEachTransfer) {
  constexpr uint64_t kBytes = 4 << 20;
  Link link(reader_options("reader"), options("owner"), path(), kBytes);
  Ranges work;
  for (uint64_t i = 0; i < 1024; ++i) work.add(i * 3 % 4 << 20, i * 3 % 4 << 20, 1 << 20);
  Transfer transfer = must(link.session.read(work.list()));
  link.owner.process().kill_hard();
  EXPECT_EQ(transfer.wait(3s).code(), Code::kPeerLost);
  EXPECT_TRUE(eventually([&] { return metric(*link.engine, "peers_lost_total") == 1; }));
  EXPECT_EQ(metric(*link.engine, "transfers_in_flight"), 0);
}

}  // namespace
}  // namespace stagelink::test
