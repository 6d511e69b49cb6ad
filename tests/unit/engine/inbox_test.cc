#include "engine/inbox.h"

#include <atomic>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

namespace stagelink::engine {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A ring and the one who sends through it, in one process.
struct Sender {
  explicit Sender(Inbox& inbox, uint64_t id)
      : ring(std::make_shared<InboundRing>(
            InstanceId{id, id}, "sender-" + std::to_string(id),
            *memory::SharedPages::create("test-page", wire::kPeerPageBytes,
                                         memory::SharedPages::Peers::kMayWrite))),
        producer(ring->page()),
        doorbell(*memory::SharedPages::open(UniqueFd(::dup(inbox.doorbell_fd())),
                                            wire::kDoorbellBytes, /*writable=*/true)),
        bell(::dup(inbox.event_fd())) {
    inbox.add(ring);
  }
  // As a peer does it: the record, then the bell if somebody sleeps.
  bool send(uint8_t value) {
    const std::byte payload[1] = {static_cast<std::byte>(value)};
    if (!producer.push(Reason::kOk, payload)) return false;
    std::atomic<uint32_t>& armed = doorbell.at<wire::Doorbell>()->armed;
    if (armed.load() != 0 && armed.exchange(0) != 0) {
      const uint64_t one = 1;
      EXPECT_EQ(::write(bell.get(), &one, sizeof one), 8);
    }
    return true;
  }

  std::shared_ptr<InboundRing> ring;
  transport::NotifyProducer producer;
  memory::SharedPages doorbell;
  UniqueFd bell;
};

class InboxTest : public ::testing::Test {
 protected:
  std::vector<Notification> take(size_t max = 100, Duration timeout = Duration::zero()) {
    return inbox_->take(max, Deadline::in(timeout));
  }
  bool readable() const {
    pollfd fd{inbox_->event_fd(), POLLIN, 0};
    return ::poll(&fd, 1, 0) == 1;
  }

  std::vector<std::string> failures_;  // By their reason.
  std::unique_ptr<Inbox> inbox_ =
      *Inbox::create([this](const std::string& what, const Status& why) {
        failures_.push_back(what + ": " + std::string(reason_name(why.reason())));
      });
};

TEST_F(InboxTest, EachSenderKeepsItsOrder) {
  Sender one(*inbox_, 1);
  Sender two(*inbox_, 2);
  for (uint8_t i = 0; i < 50; ++i) {
    ASSERT_TRUE(one.send(i));
    ASSERT_TRUE(two.send(i));
  }
  uint8_t next[3] = {};
  size_t total = 0;
  while (total < 100) {
    const auto taken = take(7);
    ASSERT_FALSE(taken.empty());
    for (const Notification& note : taken) {
      EXPECT_EQ(note.payload[0], static_cast<std::byte>(next[note.source.low]++));
    }
    total += taken.size();
  }
  EXPECT_TRUE(take().empty());
}

TEST_F(InboxTest, BusySenderDoesNotStarveAnother) {
  Sender loud(*inbox_, 1);
  Sender quiet(*inbox_, 2);
  ASSERT_TRUE(quiet.send(0));
  bool heard = false;
  for (int round = 0; round < 3; ++round) {
    while (loud.send(1)) {
    }
    for (const Notification& note : take(10)) heard = heard || note.source.low == 2;
  }
  EXPECT_TRUE(heard);
}

TEST_F(InboxTest, SleepersNeverMissAMessage) {
  Sender sender(*inbox_, 1);
  constexpr int kCount = 3000;
  std::atomic<int> received{0};
  std::vector<std::thread> sleepers;
  for (int i = 0; i < 3; ++i) {
    sleepers.emplace_back([&] {
      while (received.load() < kCount) {
        received.fetch_add(static_cast<int>(take(1, milliseconds(200)).size()));
      }
    });
  }
  const auto before = std::chrono::steady_clock::now();
  for (int i = 0; i < kCount; ++i) {
    while (!sender.send(static_cast<uint8_t>(i))) std::this_thread::yield();
  }
  for (std::thread& sleeper : sleepers) sleeper.join();
  EXPECT_EQ(received.load(), kCount);
  // A missed bell would cost 200 ms each time.
  EXPECT_LT(std::chrono::steady_clock::now() - before, seconds(20));
}

TEST_F(InboxTest, FdTellsOfEveryArrival) {
  Sender sender(*inbox_, 1);
  ASSERT_TRUE(sender.send(1));  // Before anybody asked for the fd.
  EXPECT_EQ(inbox_->arm_fileno(), inbox_->event_fd());
  EXPECT_TRUE(readable());
  EXPECT_EQ(take().size(), 1U);
  EXPECT_FALSE(readable());
  for (uint8_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(sender.send(i));
    ASSERT_TRUE(sender.send(i));
    EXPECT_TRUE(readable());
    EXPECT_EQ(take(1).size(), 1U);
    EXPECT_TRUE(readable()) << "one still waits";
    EXPECT_EQ(take(2).size(), 1U);
    EXPECT_TRUE(take().empty());
    EXPECT_FALSE(readable());
  }
}

TEST_F(InboxTest, SpoiltRingIsNotReadAgainAndOthersAre) {
  Sender bad(*inbox_, 1);
  Sender good(*inbox_, 2);
  bad.ring->page().tail.store(~uint64_t{0});
  ASSERT_TRUE(good.send(5));
  const auto taken = take();
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(taken[0].source.low, 2U);
  EXPECT_TRUE(bad.ring->spoilt());
  EXPECT_TRUE(take().empty());
  ASSERT_EQ(failures_.size(), 1U);  // Told once.
  EXPECT_TRUE(failures_[0].starts_with("notifications from sender-1 (")) << failures_[0];
  EXPECT_TRUE(failures_[0].ends_with(": frame")) << failures_[0];
}

TEST_F(InboxTest, FdsGoAtTheEndButForTheOneThatAnEventLoopWaitsFor) {
  const int doorbell = inbox_->doorbell_fd();
  const int event = inbox_->event_fd();
  const auto open = [](int fd) { return ::fcntl(fd, F_GETFD) != -1; };
  inbox_->close();
  EXPECT_TRUE(open(doorbell) && open(event));
  inbox_->close_fds();
  EXPECT_FALSE(open(doorbell) || open(event));
  EXPECT_EQ(inbox_->arm_fileno(), -1);
  inbox_->close();  // Nothing is written anywhere.

  inbox_ = *Inbox::create([](const std::string&, const Status&) {});
  const int waited_for = inbox_->arm_fileno();
  EXPECT_TRUE(take().empty());
  EXPECT_FALSE(readable());
  inbox_->close();
  inbox_->close_fds();
  EXPECT_EQ(inbox_->event_fd(), waited_for);
  EXPECT_TRUE(readable()) << "the loop must see the end";
}

TEST_F(InboxTest, DepartedRingIsDrainedBeforeItGoes) {
  Sender sender(*inbox_, 1);
  ASSERT_TRUE(sender.send(9));
  sender.ring->departed.store(true);
  inbox_->tick();
  EXPECT_EQ(inbox_->size(), 1U);
  EXPECT_TRUE(inbox_->rings().empty());  // Its lanes hold nothing any more.
  EXPECT_EQ(take().size(), 1U);
  inbox_->tick();
  EXPECT_EQ(inbox_->size(), 0U);
}

TEST_F(InboxTest, SilencedBellIsRungByTheTimer) {
  Sender sender(*inbox_, 1);
  std::atomic<bool> got{false};
  std::thread sleeper([&] { got.store(take(1, seconds(20)).size() == 1); });
  const std::byte payload[1] = {};
  ASSERT_TRUE(sender.producer.push(Reason::kOk, payload));  // And no bell.
  while (!got.load()) {
    inbox_->tick();
    std::this_thread::yield();
  }
  sleeper.join();
}

TEST_F(InboxTest, CloseWakesEverySleeper) {
  std::vector<std::thread> sleepers;
  for (int i = 0; i < 3; ++i) {
    sleepers.emplace_back([&] { EXPECT_TRUE(take(1, seconds(30)).empty()); });
  }
  const auto before = std::chrono::steady_clock::now();
  inbox_->close();
  for (std::thread& sleeper : sleepers) sleeper.join();
  EXPECT_LT(std::chrono::steady_clock::now() - before, seconds(10));
  EXPECT_TRUE(take(1, seconds(30)).empty());
}

}  // namespace
}  // namespace stagelink::engine
