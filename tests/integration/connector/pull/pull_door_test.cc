// Where a sender is asked: addresses, secrets, carriers, foreign messages and older peers.

#include <array>
#include <filesystem>
#include <future>

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/unique_fd.h"
#include "connector/pull/messages/messages.h"
#include "connector/pull/messages/omni_messages.h"
#include "connector/zmq/socket.h"
#include "integration/connector/pull/old_sender.h"
#include "integration/connector/pull/pull_test.h"
#include "integration/support/secret_files.h"

namespace stagelink::test {
namespace {

using pull::PullMetadata;

class PullDoorTest : public PullOwnershipTest {};

TEST_F(PullDoorTest, AHeldPortIsNamed) {
  auto holder = connector("");
  const auto port = holder->connection_info().zmq_port;
  const auto second =
      pull::PullConnector::create(must(pull_options(json(fmt::format(R"("zmq_port": {})", port)))));
  EXPECT_REASON(Reason::kPortInUse, second.status());
  EXPECT_NE(second.status().message().find(std::to_string(port)), std::string_view::npos);
}

TEST_F(PullDoorTest, ListensAndGetsOverIpv6Alone) {
  const UniqueFd probe(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 loopback{};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = in6addr_loopback;
  if (!probe ||
      ::bind(probe.get(), reinterpret_cast<const sockaddr*>(&loopback), sizeof loopback) != 0) {
    GTEST_SKIP() << "this host has no ::1";
  }
  PullPeer sender(json(R"("host": "::1", "protocol": "tcp")"));
  EXPECT_EQ(sender.address().source_host, "::1");
  auto receiver = connector(R"("host": "::1", "role": "receiver", "protocol": "tcp")");
  (void)must(sender.put("k", 4, 5000));
  EXPECT_EQ(first_wrong(must(get(*receiver, "k", sender.address())).piece.bytes(), 4),
            std::nullopt);
}

TEST_F(PullDoorTest, OverZeroMqWhereTheSocketIsOutOfReach) {
  PullPeer sender(json(""));
  auto receiver = connector(R"("role": "receiver", "protocol": "tcp")");
  // As from another mount namespace.
  for (const auto& entry : std::filesystem::directory_iterator(runtime_dir())) {
    if (entry.path().extension() == ".pull") std::filesystem::remove(entry.path());
  }
  (void)must(sender.put("k", 5, kPullBytes));
  EXPECT_EQ(first_wrong(must(get(*receiver, "k", sender.address())).piece.bytes(), 5),
            std::nullopt);
  auto later = std::async(std::launch::async,
                          [&] { return get(*receiver, "later", sender.address(), 30s).status(); });
  ASSERT_TRUE(eventually([&] { return sender.health().waiting == 1; }));
  (void)must(sender.put("later", 6, 10));
  EXPECT_OK(later.get());
  EXPECT_TRUE(eventually([&] { return sender.health().offers == 0; }));
  EXPECT_REASON(Reason::kTimedOut, get(*receiver, "never", sender.address(), 30ms).status());
  EXPECT_TRUE(eventually([&] { return sender.health().waiting == 0; }));
}

TEST_F(PullDoorTest, OnlyWhoHoldsTheSecretIsServed) {
  const SecretFiles files;
  const std::string right =
      fmt::format(R"("secret_file": "{}")", files.write("right", std::string(32, 'a')));
  const std::string wrong = fmt::format(R"("ask_timeout": "200ms", "secret_file": "{}")",
                                        files.write("wrong", std::string(32, 'b')));
  PullPeer sender(json(right));
  (void)must(sender.put("k", 1, 1000, 0));
  auto friendly = connector(right + R"(, "role": "receiver")");
  EXPECT_EQ(first_wrong(must(get(*friendly, "k", sender.address())).piece.bytes(), 1),
            std::nullopt);
  auto stranger = connector(wrong + R"(, "role": "receiver")");
  EXPECT_REASON(Reason::kUnreachable, get(*stranger, "k", sender.address()).status());
  auto nobody = connector(R"("role": "receiver", "ask_timeout": "200ms")");
  EXPECT_REASON(Reason::kUnreachable, get(*nobody, "k", sender.address()).status());
}

TEST_F(PullDoorTest, NobodyThereIsSaidWithinTheAskTimeoutAndThenAtOnce) {
  auto receiver = connector(R"("role": "receiver", "ask_timeout": "100ms")");
  PullMetadata nowhere;
  nowhere.source_host = "127.0.0.1";
  nowhere.source_port = 1;
  EXPECT_REASON(Reason::kUnreachable, get(*receiver, "k", nowhere).status());
  const auto begin = Deadline::Clock::now();
  for (int i = 0; i < 200; ++i) (void)get(*receiver, "k", nowhere);
  EXPECT_LT(Deadline::Clock::now() - begin, 10s);  // Not 20.
  EXPECT_GE(receiver->health().timeouts, 201u);
}

TEST_F(PullDoorTest, ForgedMessagesHarmNobody) {
  PullPeer sender(json(""));
  auto receiver = connector(kReceiverRole);
  (void)must(sender.put("k", 1, kPullBytes));
  pull::Claim held = claim(*receiver, sender.address(), "k");

  auto context = must(zmq::Context::create(must(zmq::Library::load())));
  auto dealer = must(
      zmq::Dealer::connect(context, {sender.address().source_host, sender.address().source_port}));
  std::string socket;
  for (const auto& entry : std::filesystem::directory_iterator(runtime_dir())) {
    if (entry.path().extension() == ".pull") socket = entry.path();
  }
  ASSERT_FALSE(socket.empty());
  SplitMix64 random(seed());
  pull::Message message;
  for (int i = 0; i < 300; ++i) {
    if (i % 3 == 0) {
      encode(pull::ClaimMessage{{1, 2}, {3, 4}, 10, {{random.next(), 0, "k"}}}, message);
    } else if (i % 3 == 1) {
      // A life that was guessed, a claim that was not.
      encode(pull::ReleaseMessage{{1, 2}, {3, 4}, {{random.next(), true}}}, message);
    } else {
      message = pull::omni_request(pull::OmniRequest::kCleanup, "k");
    }
    for (int flips = 0; flips < 3; ++flips) {
      message[random.below(message.size())] ^= static_cast<std::byte>(1 + random.below(255));
    }
    message.resize(1 + random.below(message.size()));
    const zmq::FrameSpan frame = message;
    ASSERT_OK(dealer.send(std::span(&frame, 1), Deadline::in(10s)));
    const UniqueFd unix_door(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    socket.copy(address.sun_path, sizeof address.sun_path - 1);
    ASSERT_EQ(::connect(unix_door.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_GT(::send(unix_door.get(), message.data(), message.size(), MSG_NOSIGNAL), 0);
  }
  EXPECT_OK(read(*receiver, held, 1));
  receiver->finish(std::move(held));
  (void)must(sender.put("k", 2, 100));
  EXPECT_EQ(must(get(*receiver, "k", sender.address())).bytes, 100u);
}

// --- Peers of 0.30 ---

class PullCompatTest : public PullOwnershipTest {
 protected:
  // One request as such a receiver sends it, and its answer.
  static pull::Message ask(zmq::Dealer& dealer, const pull::Message& request) {
    const std::array<zmq::FrameSpan, 2> frames = {zmq::FrameSpan(), request};
    EXPECT_OK(dealer.send(frames, Deadline::in(10s)));
    auto answer = must(dealer.receive(Deadline::in(10s)));
    return answer.has_value() && answer->size() == 2 ? answer->back() : pull::Message();
  }
};

TEST_F(PullCompatTest, AQueryIsAClaimUntilItsCleanup) {
  PullPeer sender(json(R"("compat_030": true)"));
  const PullMetadata put = must(sender.put("k@0_1", 1, kPullBytes));
  auto context = must(zmq::Context::create(must(zmq::Library::load())));
  auto dealer = must(
      zmq::Dealer::connect(context, {sender.address().source_host, sender.address().source_port}));
  const auto query = pull::omni_request(pull::OmniRequest::kQuery, "k@0_1");
  const auto cleanup = pull::omni_request(pull::OmniRequest::kCleanup, "k@0_1");
  const pull::OmniInfo info = must(pull::read_omni_info(ask(dealer, query)));
  EXPECT_EQ(info.key, "k@0_1");
  EXPECT_EQ(info.data_size, kPullBytes);
  EXPECT_TRUE(info.is_fast_path);
  // The put in between is not what the cleanup is for.
  (void)must(sender.put("k@0_1", 2, kPullBytes));
  EXPECT_EQ(sender.health().offers, 2u);
  EXPECT_TRUE(pull::is_omni_word(ask(dealer, cleanup), pull::kOmniAckOk));
  EXPECT_EQ(sender.health().offers, 1u);
  EXPECT_GT(must(pull::read_omni_info(ask(dealer, query))).data_size, 0u);
  EXPECT_TRUE(pull::is_omni_word(ask(dealer, cleanup), pull::kOmniAckOk));
  EXPECT_EQ(sender.health().offers, 0u);
  EXPECT_TRUE(pull::is_omni_word(ask(dealer, query), pull::kOmniNotFound));
  EXPECT_TRUE(pull::is_omni_word(ask(dealer, pull::omni_word("query_info")), pull::kOmniNotFound));
  EXPECT_TRUE(pull::is_omni_word(ask(dealer, pull::omni_word("what")), pull::kOmniAckError));
}

TEST_F(PullCompatTest, GetsFromASenderOf030OnlyIfToldTo) {
  auto holder = connector("");
  const auto region = must(holder->allocate_memory(kPullBytes));
  fill_pattern(region->bytes(), 8);
  const auto address = reinterpret_cast<uint64_t>(region->bytes().data());
  OldSender old({"k",
                 holder->connection_info().rpc_port,
                 kPullBytes,
                 false,
                 {address, address + 1000},
                 {1000, kPullBytes - 1000}});
  auto strict = connector(kReceiverRole);
  EXPECT_REASON(Reason::kVersion, get(*strict, "k", old.address()).status());
  auto lenient = connector(R"("role": "receiver", "compat_030": true)");
  for (int i = 1; i <= 2; ++i) {
    const pull::Received got = must(get(*lenient, "k", old.address()));
    EXPECT_EQ(first_wrong(got.piece.bytes(), 8), std::nullopt);
    EXPECT_FALSE(got.is_fast_path);
    EXPECT_TRUE(eventually([&] { return old.cleanups() == i; }));
  }
  EXPECT_REASON(Reason::kNotFound, get(*lenient, "missing", old.address()).status());
  EXPECT_REASON(Reason::kTimedOut, get(*lenient, "missing", old.address(), 30ms).status());
}

}  // namespace
}  // namespace stagelink::test
