// What passes between a receiver and a sender of another process, looked at on its way: releases
// that do not arrive, and messages of another version.

#include <atomic>
#include <cstring>
#include <functional>
#include <list>
#include <optional>
#include <set>
#include <thread>

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "connector/pull/messages/messages.h"
#include "connector/zmq/socket.h"
#include "integration/connector/pull/pull_test.h"
#include "stagelink/version.h"

namespace stagelink::test {
namespace {

using pull::Message;
using pull::MessageType;
using pull::PullMetadata;

enum class Carrier : uint8_t { kUnix, kZmq };

UniqueFd packet_socket() {
  return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}
sockaddr_un unix_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return address;
}

// Stands before both doors of a sender, and lets a receiver see only one of them.
class PullRelay {
 public:
  // On the relay's thread. It may change the message; false: it is held.
  using Look = std::function<bool(Message& message, MessageType type, bool from_sender)>;

  PullRelay(const PullMetadata& sender, Carrier carrier, const std::string& runtime_dir, Look look)
      : carrier_(carrier),
        path_(runtime_dir + "/relay"),
        look_(std::move(look)),
        context_(must(zmq::Context::create(must(zmq::Library::load())))),
        front_(must(zmq::Router::bind(context_, {.host = "127.0.0.1"}))),
        back_(must(zmq::Dealer::connect(context_, {sender.source_host, sender.source_port}))),
        listener_(packet_socket()),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    const sockaddr_un address = unix_address(path_);
    if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(listener_.get(), 8) != 0) {
      throw std::runtime_error(path_);
    }
    address_.source_host = "127.0.0.1";
    address_.source_port = front_.endpoint().port;
    thread_ = std::thread([this] { run(); });
  }
  ~PullRelay() {
    stopping_.store(true);
    ::eventfd_write(wake_.get(), 1);
    thread_.join();
    ::unlink(path_.c_str());
  }
  PullRelay(const PullRelay&) = delete;
  PullRelay& operator=(const PullRelay&) = delete;

  // Of the sender, for receivers.
  const PullMetadata& address() const noexcept { return address_; }
  std::vector<Message> held() {
    MutexLock lock(mutex_);
    return held_;
  }
  // What is held goes to the sender, so many times.
  void let_go(int times) {
    times_.store(times);
    ::eventfd_write(wake_.get(), 1);
  }

 private:
  struct Pair {
    UniqueFd receiver;
    UniqueFd sender;
  };

  void run() {
    while (!stopping_.load()) {
      std::vector<zmq::PollItem> items = {{.fd = wake_.get(), .want_read = true},
                                          {.socket = &front_, .want_read = true},
                                          {.socket = &back_, .want_read = true},
                                          {.fd = listener_.get(), .want_read = true}};
      for (const Pair& pair : pairs_) {
        items.push_back({.fd = pair.receiver.get(), .want_read = true});
        items.push_back({.fd = pair.sender.get(), .want_read = true});
      }
      if (!zmq::poll(context_->library(), items, Deadline::in(1s)).ok()) return;
      eventfd_t ignored = 0;
      ::eventfd_read(wake_.get(), &ignored);
      send_held(times_.exchange(0));
      while (pass_frames(front_, false)) {
      }
      while (pass_frames(back_, true)) {
      }
      accept_one();
      std::erase_if(pairs_, [this](const Pair& pair) { return !pass_packets(pair); });
    }
  }

  bool pass_frames(zmq::Socket& from, bool from_sender) {
    auto frames = from.receive(Deadline::in(0s));
    if (!frames.ok() || !frames->has_value()) return false;
    if (!from_sender) identity_ = (*frames)->front();
    if (look((*frames)->back(), from_sender)) send_frames((*frames)->back(), from_sender);
    return true;
  }
  void send_frames(const Message& message, bool from_sender) {
    std::vector<zmq::FrameSpan> frames = {zmq::FrameSpan(), message};
    if (from_sender) frames.insert(frames.begin(), identity_);
    zmq::Socket& to = from_sender ? static_cast<zmq::Socket&>(front_) : back_;
    (void)to.send(frames, Deadline::in(10s));
  }

  void accept_one() {
    Pair pair{UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)),
              packet_socket()};
    if (!pair.receiver) return;
    const sockaddr_un address = unix_address(sender_path_);
    (void)::connect(pair.sender.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    pairs_.push_back(std::move(pair));
  }
  // False: one of the two has gone.
  bool pass_packets(const Pair& pair) {
    for (const bool from_sender : {false, true}) {
      const int from = (from_sender ? pair.sender : pair.receiver).get();
      const int to = (from_sender ? pair.receiver : pair.sender).get();
      while (true) {
        Message message(pull::kMaxMessageBytes);
        const ssize_t got = ::recv(from, message.data(), message.size(), 0);
        if (got < 0 && errno == EAGAIN) break;
        if (got <= 0) return false;
        message.resize(static_cast<size_t>(got));
        if (look(message, from_sender)) (void)::send(to, message.data(), message.size(), 0);
      }
    }
    return true;
  }

  bool look(Message& message, bool from_sender) {
    const MessageType type = must(pull::message_type(message));
    if (type == MessageType::kWelcome) {
      pull::WelcomeMessage welcome;
      if (!pull::decode(message, welcome).ok()) return true;
      sender_path_ = welcome.socket_path;
      welcome.socket_path = carrier_ == Carrier::kUnix ? path_ : "";
      pull::encode(welcome, message);
    }
    if (look_(message, type, from_sender)) return true;
    MutexLock lock(mutex_);
    held_.push_back(message);
    return false;
  }
  void send_held(int times) {
    std::vector<Message> held;
    if (times > 0) {
      MutexLock lock(mutex_);
      held.swap(held_);
    }
    for (int i = 0; i < times; ++i) {
      for (const Message& message : held) {
        if (carrier_ == Carrier::kZmq) send_frames(message, false);
        for (const Pair& pair : pairs_) {
          (void)::send(pair.sender.get(), message.data(), message.size(), MSG_NOSIGNAL);
        }
      }
    }
  }

  const Carrier carrier_;
  const std::string path_;
  const Look look_;
  const std::shared_ptr<zmq::Context> context_;
  // Of the thread, once it runs.
  zmq::Router front_;
  zmq::Dealer back_;
  UniqueFd listener_;
  std::list<Pair> pairs_;
  std::string sender_path_;
  zmq::Bytes identity_;

  UniqueFd wake_;
  PullMetadata address_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> times_{0};
  Mutex mutex_;
  std::vector<Message> held_ SL_GUARDED_BY(mutex_);
  std::thread thread_;
};

// A sender in a process of its own, and a relay before it.
class PullRelayTest : public PullOwnershipTest {
 protected:
  void open(Carrier carrier, PullRelay::Look look) {
    sender_.emplace(json(""));
    relay_.emplace(sender_->address(), carrier, runtime_dir(), std::move(look));
  }
  void TearDown() override {
    relay_.reset();
    sender_.reset();
    PullOwnershipTest::TearDown();
  }
  std::optional<PullPeer> sender_;
  std::optional<PullRelay> relay_;
};

// --- Releases ---

class PullReleaseTest : public PullRelayTest, public ::testing::WithParamInterface<Carrier> {
 protected:
  void SetUp() override {
    PullRelayTest::SetUp();
    open(GetParam(),
         [](Message&, MessageType type, bool) { return type != MessageType::kRelease; });
  }
};
INSTANTIATE_TEST_SUITE_P(Each, PullReleaseTest, ::testing::Values(Carrier::kUnix, Carrier::kZmq),
                         [](const auto& each) {
                           return each.param == Carrier::kUnix ? "unix" : "zmq";
                         });

// Half of what an answer to the release would have been waited for.
constexpr Duration kNotWaited = 10s;

TEST_P(PullReleaseTest, AGetReturnsBeforeItsReleaseHasReachedTheSender) {
  auto receiver = connector(kReceiverRole);
  (void)must(sender_->put("k", 3, kPullBytes));
  const auto begin = Deadline::Clock::now();
  const pull::Received got = must(get(*receiver, "k", relay_->address()));
  EXPECT_LT(Deadline::Clock::now() - begin, kNotWaited);
  EXPECT_EQ(first_wrong(got.piece.bytes(), 3), std::nullopt);
  ASSERT_TRUE(eventually([&] { return relay_->held().size() == 1; }));
  EXPECT_EQ(sender_->health().claims, 1u);
  EXPECT_EQ(sender_->health().offers, 1u);
  relay_->let_go(1);
  EXPECT_TRUE(eventually([&] { return sender_->health().offers == 0; }));
  EXPECT_EQ(sender_->health().claims, 0u);
}

TEST_P(PullReleaseTest, AReleaseThatArrivesTwiceIsOneReader) {
  auto receiver = connector(kReceiverRole);
  (void)must(sender_->put("k", 4, kPullBytes, /*readers=*/2));
  (void)must(get(*receiver, "k", relay_->address()));
  ASSERT_TRUE(eventually([&] { return relay_->held().size() == 1; }));
  relay_->let_go(2);
  // Behind both on the same way, so they have been dealt with when it is answered.
  const pull::Received second = must(get(*receiver, "k", relay_->address()));
  EXPECT_EQ(first_wrong(second.piece.bytes(), 4), std::nullopt);
  ASSERT_TRUE(eventually([&] { return relay_->held().size() == 1; }));
  relay_->let_go(2);
  EXPECT_TRUE(eventually([&] { return sender_->health().offers == 0; }));
  EXPECT_EQ(sender_->health().claims, 0u);
}

TEST_P(PullReleaseTest, WhatWasReadTogetherIsReleasedInOneMessage) {
  auto receiver = connector(kReceiverRole);
  constexpr size_t kKeys = 12;
  std::vector<std::string> keys;
  std::vector<pull::GetRequest> requests;
  for (size_t i = 0; i < kKeys; ++i) keys.push_back(fmt::format("k{}", i));
  for (const std::string& key : keys) requests.push_back(from(relay_->address(), key));
  // What is granted a millisecond later than the others may be read, and released, after them.
  size_t messages = kKeys;
  for (int round = 0; round < 50 && messages > 1; ++round) {
    for (const std::string& key : keys) (void)must(sender_->put(key, 5, 4096));
    for (auto& got : receiver->get_many(requests)) EXPECT_EQ(must(std::move(got)).bytes, 4096u);
    std::set<uint64_t> released;
    ASSERT_TRUE(eventually([&] {
      released.clear();
      for (const Message& message : relay_->held()) {
        pull::ReleaseMessage release;
        EXPECT_OK(pull::decode(message, release));
        for (const pull::ReleaseEntry& entry : release.entries) {
          EXPECT_TRUE(entry.consumed);
          released.insert(entry.id);
        }
      }
      return released.size() == kKeys;
    }));
    messages = relay_->held().size();
    relay_->let_go(1);
    ASSERT_TRUE(eventually([&] { return sender_->health().offers == 0; }));
  }
  EXPECT_EQ(messages, 1u);
}

TEST_F(PullOwnershipTest, ASenderThatStopsDelaysNothingThatIsRead) {
  PullPeer sender(json(""));
  auto receiver = connector(kReceiverRole);
  (void)must(sender.put("k", 6, kPullBytes));
  pull::Claim held = claim(*receiver, sender.address(), "k");
  sender.process().stop();
  const auto begin = Deadline::Clock::now();
  EXPECT_OK(read(*receiver, held, 6));
  receiver->finish(std::move(held));
  EXPECT_LT(Deadline::Clock::now() - begin, kNotWaited);
  sender.process().resume();
  EXPECT_TRUE(eventually([&] { return sender.health().offers == 0; }));
}

// --- Versions ---

struct OtherVersion {
  const char* name;
  Carrier carrier;
  MessageType type;
  bool from_sender;
};

class PullVersionTest : public PullRelayTest, public ::testing::WithParamInterface<OtherVersion> {
 protected:
  void SetUp() override {
    PullRelayTest::SetUp();
    open(GetParam().carrier, [this](Message& message, MessageType type, bool from_sender) {
      if (type == GetParam().type && from_sender == GetParam().from_sender) {
        // As a peer of another version says it.
        const auto major = static_cast<uint16_t>(kProtocolMajor + more_.load());
        std::memcpy(message.data() + 4, &major, sizeof major);
      }
      return true;
    });
  }
  std::atomic<int> more_{1};
};
INSTANTIATE_TEST_SUITE_P(
    Each, PullVersionTest,
    ::testing::Values(OtherVersion{"hello", Carrier::kUnix, MessageType::kHello, false},
                      OtherVersion{"welcome", Carrier::kUnix, MessageType::kWelcome, true},
                      OtherVersion{"claim_unix", Carrier::kUnix, MessageType::kClaim, false},
                      OtherVersion{"grant_unix", Carrier::kUnix, MessageType::kGrant, true},
                      OtherVersion{"claim_zmq", Carrier::kZmq, MessageType::kClaim, false},
                      OtherVersion{"grant_zmq", Carrier::kZmq, MessageType::kGrant, true}),
    [](const auto& each) { return each.param.name; });

TEST_P(PullVersionTest, IsNamedWithOursCountedOnceAndKeepsNobodyWaiting) {
  (void)must(sender_->put("k", 7, kPullBytes));
  testing::internal::CaptureStderr();
  PullPeer receiver(json(kReceiverRole));
  const auto begin = Deadline::Clock::now();
  const Status status = receiver.get("k", relay_->address(), 7, 30s).status();
  EXPECT_LT(Deadline::Clock::now() - begin, kNotWaited);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_REASON(Reason::kVersion, status);
  for (const int major : {kProtocolMajor, kProtocolMajor + 1}) {
    const std::string version = fmt::format("{}.{}", major, kProtocolMinor);
    EXPECT_NE(status.message().find(version), std::string_view::npos) << status.to_string();
  }
  EXPECT_EQ(metric_in(receiver.metrics_text(), "pull_gets_total", "version"), 1);
  EXPECT_EQ(receiver.health().errors, 1u);
  const size_t line = log.find("get of k failed: version");
  EXPECT_NE(line, std::string::npos) << log;
  EXPECT_EQ(log.find("failed: version", line + 20), std::string::npos) << log;
  const double refused = GetParam().from_sender ? 0 : 1;
  EXPECT_EQ(metric_in(sender_->metrics_text(), "pull_messages_refused_total"), refused);
  // It holds nothing there, and a peer of our version at the same address is served.
  EXPECT_TRUE(eventually([&] { return sender_->health().claims == 0; }, 90s));
  more_.store(0);
  ASSERT_TRUE(eventually([&] {
    auto got = receiver.get("k", relay_->address(), 7);
    return got.ok() && got->right;
  }));
}

}  // namespace
}  // namespace stagelink::test
