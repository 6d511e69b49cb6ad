// Messages between engines: order, bounds, sleep, and what they say about transfers.

#include <atomic>
#include <thread>

#include <sys/epoll.h>

#include "base/unique_fd.h"
#include "integration/support/engine_test.h"
#include "integration/support/ranges.h"
#include "integration/support/unseen.h"

namespace stagelink::test {
namespace {

constexpr uint64_t kBytes = 4 << 20;

// The reader of a Link also hears from the owner: the owner connects back.
class NotificationTest : public PathTest {
 protected:
  EngineOptions side(const std::string& name) const {
    EngineOptions side = options(name);
    side.transports = {transport_of(path())};
    return side;
  }
  Link link() const {
    Link link(side("reader"), side("owner"), path(), kBytes);
    EXPECT_OK(link.owner.connect(link.engine->descriptor()));
    return link;
  }
};
// By the ring of a shared page, or by frames.
INSTANTIATE_TEST_SUITE_P(Both, NotificationTest, ::testing::Values(Path::kShm, Path::kTcp),
                         path_name);

TEST_P(NotificationTest, ArrivesWithItsSourceAndItsBytes) {
  Link link = this->link();
  ASSERT_OK(link.owner.notify("hello"));
  const auto taken = must(link.engine->notifications(5s));
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(text_of(taken[0].payload), "hello");
  EXPECT_EQ(taken[0].source, link.peer.instance());
  EXPECT_EQ(taken[0].source_name, "owner");
  EXPECT_EQ(taken[0].outcome, Reason::kOk);
}

TEST_P(NotificationTest, EmptyMessageIsAMessage) {
  Link link = this->link();
  ASSERT_OK(link.peer.notify({}));
  const auto taken = link.owner.take(5s);
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_TRUE(taken[0].payload.empty());
}

TEST_P(NotificationTest, OrderIsThatOfSending) {
  Link link = this->link();
  constexpr int kCount = 5000;
  std::thread sender([&] {
    for (int i = 0; i < kCount; ++i) {
      const auto payload = bytes_of(std::to_string(i));
      EXPECT_TRUE(eventually([&] {
        const Status sent = link.peer.notify(payload);
        return sent.ok() || sent.reason() != Reason::kRingFull;
      }));
    }
  });
  int next = 0;
  while (next < kCount) {
    const auto taken = link.owner.take(5s, 100);
    if (taken.empty()) break;
    for (const Notification& note : taken) EXPECT_EQ(text_of(note.payload), std::to_string(next++));
  }
  sender.join();
  EXPECT_EQ(next, kCount);
}

TEST_P(NotificationTest, FullRingIsBusyAndDrains) {
  Link link = this->link();
  const std::vector<std::byte> payload(1000, std::byte{7});
  uint64_t sent = 0;
  Status status;
  while ((status = link.peer.notify(payload)).ok()) ASSERT_LT(++sent, 1000U);
  EXPECT_REASON(Reason::kRingFull, status);
  EXPECT_EQ(status.scope(), Scope::kTransfer);
  EXPECT_GE(sent, 30U);
  uint64_t taken = 0;
  while (taken < sent) {
    const auto some = link.owner.take(5s, 7);
    ASSERT_FALSE(some.empty());
    ASSERT_LE(some.size(), 7U);
    for (const Notification& note : some) EXPECT_EQ(note.payload, payload);
    taken += some.size();
  }
  EXPECT_EQ(taken, sent);
  EXPECT_TRUE(eventually([&] { return link.peer.notify(payload).ok(); }));
}

TEST_P(NotificationTest, LargestMessageFitsAndOneByteMoreIsRefused) {
  EngineOptions small = side("owner");
  small.max_notification_bytes = 100;
  Link link(side("reader"), small, path(), kBytes);
  EXPECT_OK(link.peer.notify(std::vector<std::byte>(100)));
  EXPECT_REASON(Reason::kTooLarge, link.peer.notify(std::vector<std::byte>(101)));
  Transfer transfer = must(link.session.read(whole(64)));
  EXPECT_REASON(Reason::kTooLarge, link.peer.notify(std::vector<std::byte>(101), transfer));
  EXPECT_EQ(link.owner.take(5s).size(), 1U);
}

TEST_P(NotificationTest, SleeperWakesForAMessageLongBeforeItsTimeout) {
  Link link = this->link();
  for (int round = 0; round < 20; ++round) {
    std::atomic<bool> got{false};
    std::thread sleeper([&] {
      const auto taken = must(link.engine->notifications(20s));
      got.store(taken.size() == 1);
    });
    ASSERT_OK(link.owner.notify("wake"));
    sleeper.join();
    ASSERT_TRUE(got.load());
  }
}

TEST_P(NotificationTest, EverySleeperGetsItsShare) {
  Link link = this->link();
  std::atomic<int> received{0};
  std::vector<std::thread> sleepers;
  for (int i = 0; i < 4; ++i) {
    sleepers.emplace_back([&] {
      while (received.load() < 200) {
        received.fetch_add(static_cast<int>(must(link.engine->notifications(50ms, 1)).size()));
      }
    });
  }
  for (int i = 0; i < 200; ++i) ASSERT_OK(link.owner.notify("x"));
  for (std::thread& sleeper : sleepers) sleeper.join();
  EXPECT_EQ(received.load(), 200);
}

TEST_P(NotificationTest, NothingComesByTheTimeout) {
  Link link = this->link();
  const auto before = std::chrono::steady_clock::now();
  EXPECT_TRUE(must(link.engine->notifications(50ms)).empty());
  const auto took = std::chrono::steady_clock::now() - before;
  EXPECT_GE(took, 50ms);
  EXPECT_LT(took, 5s);
}

TEST_P(NotificationTest, FdIsReadableWhileMessagesWait) {
  Link link = this->link();
  const int fd = must(link.engine->fileno());
  const UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event interest{};
  interest.events = EPOLLIN;
  ASSERT_EQ(::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &interest), 0);
  const auto readable = [&](int timeout_ms) {
    epoll_event event{};
    return ::epoll_wait(epoll.get(), &event, 1, timeout_ms) == 1;
  };
  EXPECT_TRUE(must(link.engine->notifications(Duration::zero())).empty());
  EXPECT_FALSE(readable(0));
  for (int round = 0; round < 20; ++round) {
    ASSERT_OK(link.owner.notify("one"));
    ASSERT_OK(link.owner.notify("two"));
    ASSERT_TRUE(readable(5000));
    ASSERT_EQ(must(link.engine->notifications(Duration::zero(), 1)).size(), 1U);
    // The second still waits, or is still on its way.
    size_t more = 0;
    ASSERT_TRUE(eventually([&] {
      if (!readable(1000)) return false;
      more = must(link.engine->notifications(Duration::zero(), 5)).size();
      return more != 0;
    }));
    ASSERT_EQ(more, 1U);
    ASSERT_TRUE(must(link.engine->notifications(Duration::zero())).empty());
    ASSERT_FALSE(readable(0));
  }
}

class NotifyAfterTest : public PathTest {
 protected:
  NotifyAfterTest() : link_(reader_options("reader"), options("owner"), path(), kBytes) {}
  void SetUp() override {}  // The link is older than a look at the gauges could be.
  void TearDown() override {}
  Link link_;
};
SL_FOR_BOTH_PATHS(NotifyAfterTest);

// T14: the notice is never seen before its data.
TEST_P(NotifyAfterTest, BytesAreInPlaceWhenTheNoticeArrives) {
  const uint64_t rounds = kSanitized ? 20 : 60;
  for (uint64_t round = 0; round < rounds; ++round) {
    {
      const UnseenByTsan unseen;  // That the last batch has ended is known from the other process.
      fill_pattern(link_.memory.bytes(), seed() + round);
    }
    {
      const Transfer transfer = must(link_.session.write(whole(kBytes)));
      ASSERT_OK(link_.peer.notify(bytes_of("written"), transfer));
    }  // Dropped: it goes on by itself.
    const auto taken = link_.owner.take(10s);
    ASSERT_EQ(taken.size(), 1U);
    ASSERT_EQ(taken[0].outcome, Reason::kOk);
    ASSERT_EQ(link_.owner.first_wrong(link_.remote, seed() + round), kNone) << "round " << round;
  }
}

// T14: several parts, each with its own notice, whichever ends first.
TEST_P(NotifyAfterTest, EachPartHasItsOwnNotice) {
  fill_pattern(link_.memory.bytes(), seed());
  std::vector<Transfer> parts;
  constexpr uint64_t kPart = kBytes / 4;
  for (uint64_t i = 0; i < 4; ++i) {
    parts.push_back(must(link_.session.write(
        {.local_offset = i * kPart, .remote_offset = i * kPart, .bytes = kPart, .count = 1})));
    ASSERT_OK(link_.peer.notify(bytes_of(std::to_string(i)), parts.back()));
  }
  std::set<std::string> seen;
  while (seen.size() < 4) {
    const auto taken = link_.owner.take(10s);
    ASSERT_FALSE(taken.empty());
    for (const Notification& note : taken) {
      const std::string part = text_of(note.payload);
      EXPECT_TRUE(seen.insert(part).second) << "twice: " << part;
      const uint64_t place = std::stoull(part) * kPart;
      EXPECT_EQ(link_.owner.first_wrong(link_.remote, seed(), place, kPart, place), kNone);
    }
    for (Transfer& part : parts) (void)part.poll();
  }
}

// T14: a failed batch gives a failure notice, never one of success.
TEST_P(NotifyAfterTest, CancelledBatchSaysSo) {
  // The same 4 MiB again and again: long enough to be cancelled.
  Ranges ranges;
  for (uint64_t i = 0; i < 512; ++i) ranges.add(i % 4 << 20, (i + 2) % 4 << 20, 1 << 20);
  Transfer transfer = must(link_.session.write(ranges.list()));
  ASSERT_OK(link_.peer.notify(bytes_of("first"), transfer));
  ASSERT_OK(link_.peer.notify(bytes_of("second"), transfer));
  ASSERT_EQ(transfer.cancel(), TransferPhase::kFailed);
  ASSERT_OK(link_.peer.notify(bytes_of("late"), transfer));
  std::vector<Notification> taken;
  while (taken.size() < 3) {
    const auto some = link_.owner.take(5s);
    ASSERT_FALSE(some.empty());
    taken.insert(taken.end(), some.begin(), some.end());
  }
  const std::array<const char*, 3> expected = {"first", "second", "late"};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(text_of(taken[i].payload), expected[i]);
    EXPECT_EQ(taken[i].outcome, Reason::kCancelled);
  }
}

TEST_P(NotifyAfterTest, NoticeOfASupersededReadCarriesItsReason) {
  const OwnedRegion going = make_region(link_.owner, path(), 4096);
  const std::array<const Region*, 1> own = {&link_.local};
  Session session = must(link_.peer.session(own, std::span(&going.desc, 1)));
  ASSERT_OK(link_.owner.deregister(going, 5s));
  auto transfer = session.read(whole(4096));
  if (transfer.ok()) {
    EXPECT_REASON(Reason::kSuperseded, transfer->wait(5s));
    ASSERT_OK(link_.peer.notify(bytes_of("gone"), *transfer));
    const auto taken = link_.owner.take(5s);
    ASSERT_EQ(taken.size(), 1U);
    EXPECT_EQ(taken[0].outcome, Reason::kSuperseded);
  } else {
    EXPECT_REASON(Reason::kSuperseded, transfer.status());
  }
}

TEST_P(NotifyAfterTest, NoticeAfterAFullRingComesWhenThereIsRoom) {
  const std::vector<std::byte> payload(4000, std::byte{1});
  while (link_.peer.notify(payload).ok()) {
  }
  Transfer transfer = must(link_.session.read(whole(65536)));
  ASSERT_OK(transfer.wait(5s));
  Transfer second = must(link_.session.read(whole(kBytes)));
  ASSERT_OK(link_.peer.notify(bytes_of("after"), second));
  ASSERT_OK(second.wait(5s));
  bool seen = false;
  ASSERT_TRUE(eventually([&] {
    for (const Notification& note : link_.owner.take(20ms)) {
      seen = seen || text_of(note.payload) == "after";
    }
    return seen;
  }));
}

}  // namespace
}  // namespace stagelink::test
