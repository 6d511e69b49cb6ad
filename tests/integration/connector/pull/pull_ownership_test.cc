// Who owns which bytes and when: puts, ends of time, cleanups, deaths and closes while others read.

#include <atomic>
#include <filesystem>
#include <future>
#include <thread>

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/unique_fd.h"
#include "connector/pull/messages/messages.h"
#include "connector/pull/messages/omni_messages.h"
#include "connector/zmq/listener.h"
#include "connector/zmq/socket.h"
#include "integration/connector/pull/pull_test.h"
#include "integration/support/secret_files.h"

namespace stagelink::test {
namespace {

using pull::PullMetadata;

constexpr uint64_t kPullBytes = 256 << 10;
constexpr std::string_view kReceiverRole = R"("role": "receiver")";

pull::GetRequest from(const PullMetadata& metadata, std::string_view key) {
  return {.key = key, .metadata = &metadata, .into = {}};
}

class PullOwnershipTest : public PullTest {
 protected:
  // The claim's payload, read to its end.
  static Status read(pull::PullConnector& receiver, pull::Claim& claim, uint64_t seed) {
    const pull::Piece piece = must(receiver.allocate(claim.bytes(), 5s));
    const pull::ReadPart part{0, piece.bytes()};
    const pull::ClaimRead read{&claim, std::span(&part, 1)};
    SL_TRY(receiver.read_many(std::span(&read, 1)).front());
    if (!first_wrong(piece.bytes(), seed).has_value()) return {};
    return Status(Reason::kCorrupt, "other bytes");
  }
  static pull::Claim claim(pull::PullConnector& receiver, const PullMetadata& metadata,
                           std::string_view key) {
    const pull::GetRequest request = from(metadata, key);
    return must(std::move(receiver.claim_many(std::span(&request, 1)).front()));
  }
};

TEST_F(PullOwnershipTest, APutOfTheSameKeyLeavesTheOldBytesToWhoHasClaimedThem) {
  PullPeer sender(json(""));
  auto receiver = connector(kReceiverRole);
  const PullMetadata old = must(sender.put("k", 1, kPullBytes));
  pull::Claim held = claim(*receiver, sender.address(), "k");
  (void)must(sender.put("k", 2, kPullBytes));
  (void)must(sender.put("other", 3, kPullBytes));  // Would take the memory if it were free.
  EXPECT_OK(read(*receiver, held, 1));
  EXPECT_EQ(held.generation(), old.generation);
  receiver->finish(std::move(held));
  // Releasing the old one has not touched the new one.
  EXPECT_EQ(first_wrong(must(get(*receiver, "k", sender.address())).piece.bytes(), 2),
            std::nullopt);
  // Metadata of a put that was replaced is never somebody else's payload.
  EXPECT_REASON(Reason::kSuperseded, get(*receiver, "k", old).status());
}

TEST_F(PullOwnershipTest, NeitherTimeNorCleanupTakesAPayloadFromItsReader) {
  PullPeer sender(json(""));
  auto receiver = connector(kReceiverRole);
  (void)must(sender.put("short", 1, kPullBytes, 1, /*ttl_ms=*/700));
  pull::Claim expiring = claim(*receiver, sender.address(), "short");
  (void)must(sender.put("cleaned", 2, kPullBytes));
  pull::Claim cleaned = claim(*receiver, sender.address(), "cleaned");
  EXPECT_FALSE(sender.cleanup("cleaned", cleaned.generation() + 1));
  EXPECT_TRUE(sender.cleanup("cleaned"));
  ASSERT_TRUE(eventually(
      [&] { return sender.metrics_text().find("how=\"expired\"} 1") != std::string::npos; }));
  EXPECT_REASON(Reason::kNotFound, get(*receiver, "short", sender.address()).status());
  EXPECT_REASON(Reason::kNotFound, get(*receiver, "cleaned", sender.address()).status());
  EXPECT_EQ(sender.health().offers, 2u);
  EXPECT_OK(read(*receiver, expiring, 1));
  EXPECT_OK(read(*receiver, cleaned, 2));
  receiver->finish(std::move(expiring));
  receiver->finish(std::move(cleaned));
  EXPECT_TRUE(eventually([&] { return sender.health().pool_used == 0; }));
}

TEST_F(PullOwnershipTest, AClaimPastItsTimeGivesNoBytes) {
  PullPeer sender(json(R"("claim_timeout": "60ms")"));
  auto receiver = connector(kReceiverRole);
  (void)must(sender.put("k", 1, kPullBytes));
  pull::Claim held = claim(*receiver, sender.address(), "k");
  ASSERT_TRUE(eventually([&] { return held.end().passed(); }));
  EXPECT_REASON(Reason::kExpired, read(*receiver, held, 1));
  EXPECT_TRUE(eventually([&] { return sender.health().claims == 0; }));
  // It was not read, and is still there.
  EXPECT_EQ(must(get(*receiver, "k", sender.address())).bytes, kPullBytes);
}

TEST_F(PullOwnershipTest, ADeadReceiverTakesItsClaimsWithIt) {
  PullPeer sender(json(""));
  (void)must(sender.put("k", 1, kPullBytes));
  {
    PullPeer receiver(json(kReceiverRole));
    (void)must(receiver.claim("k", sender.address()));
    ASSERT_EQ(sender.health().claims, 1u);
    receiver.process().kill_hard();
  }
  EXPECT_TRUE(eventually([&] { return sender.health().claims == 0; }));
  auto receiver = connector(kReceiverRole);
  EXPECT_EQ(must(get(*receiver, "k", sender.address())).bytes, kPullBytes);
}

TEST_F(PullOwnershipTest, ADeadSenderIsToldAndItsSuccessorIsMetAnew) {
  auto receiver = connector(R"("role": "receiver", "ask_timeout": "300ms")");
  PullMetadata address;
  {
    PullPeer sender(json(""));
    address = sender.address();
    (void)must(sender.put("k", 1, kPullBytes, 2));
    (void)must(get(*receiver, "k", address));
    pull::Claim held = claim(*receiver, address, "k");
    sender.process().kill_hard();
    // Bytes that were mapped stay right; what is never given is somebody else's.
    const Status status = read(*receiver, held, 1);
    EXPECT_TRUE(status.ok() || status.scope() == Scope::kPeer) << status.to_string();
    EXPECT_EQ(get(*receiver, "k", address).status().scope(), Scope::kPeer);
  }
  PullPeer successor(json(fmt::format(R"("zmq_port": {})", address.source_port)));
  (void)must(successor.put("k", 2, kPullBytes));
  Status last;
  ASSERT_TRUE(eventually([&] {
    auto got = get(*receiver, "k", address);
    last = got.status();
    return got.ok() && !first_wrong(got->piece.bytes(), 2).has_value();
  })) << last.to_string();
}

TEST_F(PullOwnershipTest, AStoppedSenderCostsAGetItsTimeAndNoMore) {
  PullPeer sender(json(""));
  auto receiver = connector(R"("role": "receiver", "ask_timeout": "100ms")");
  (void)must(sender.put("k", 1, 100, 0));
  (void)must(get(*receiver, "k", sender.address()));
  sender.process().stop();
  const auto begin = Deadline::Clock::now();
  EXPECT_REASON(Reason::kStopped, get(*receiver, "k", sender.address()).status());
  EXPECT_LT(Deadline::Clock::now() - begin, 5s);
  sender.process().resume();
  EXPECT_TRUE(eventually([&] { return get(*receiver, "k", sender.address()).ok(); }));
}

TEST_F(PullOwnershipTest, APayloadForSeveralReadersGoesWithTheLast) {
  PullPeer sender(json(""));
  auto first = connector(kReceiverRole);
  auto second = connector(kReceiverRole);
  (void)must(sender.put("k", 1, kPullBytes, 2));
  (void)must(get(*first, "k", sender.address()));
  EXPECT_EQ(sender.health().offers, 1u);
  EXPECT_EQ(first_wrong(must(get(*second, "k", sender.address())).piece.bytes(), 1), std::nullopt);
  EXPECT_TRUE(eventually([&] { return sender.health().offers == 0; }));
  EXPECT_REASON(Reason::kNotFound, get(*first, "k", sender.address()).status());
}

TEST_F(PullOwnershipTest, AFullPoolLetsAPutWaitUntilSomebodyHasRead) {
  auto sender = connector(R"("memory_pool_size": 1048576, "put_timeout": "20s")");
  PullPeer receiver(json(kReceiverRole));
  const PrivateMemory memory(700 << 10);
  fill_pattern(memory.bytes(), 1);
  const std::span<const std::byte> piece = memory.bytes();
  const PullMetadata put = must(sender->put("first", std::span(&piece, 1)));
  EXPECT_REASON(Reason::kNoSpace,
                sender->put("second", std::span(&piece, 1), {.timeout = 20ms}).status());
  auto waiting = std::async(std::launch::async,
                            [&] { return sender->put("second", std::span(&piece, 1)).status(); });
  ASSERT_TRUE(eventually([&] {
    return sender->metrics_text().find("pull_pool_waiting{stage=\"-1\",protocol=\"auto\"} 1") !=
           std::string::npos;
  }));
  EXPECT_TRUE(must(receiver.get("first", put, 1)).right);
  EXPECT_OK(waiting.get());
  const PrivateMemory too_large(2 << 20);
  const std::span<const std::byte> large = too_large.bytes();
  EXPECT_REASON(Reason::kTooLarge, sender->put("k", std::span(&large, 1)).status());
  EXPECT_EQ(sender->health().errors, 2u);
}

TEST_F(PullOwnershipTest, ManyLongAnswersAllArriveAtAReaderThatIsSlow) {
  auto sender = connector("");
  auto receiver = connector(kReceiverRole);
  constexpr size_t kPieces = pull::kMaxOfferPieces;
  const auto region = must(sender->allocate_memory(kPieces * 8));
  fill_pattern(region->bytes(), 1);
  std::vector<pull::RegisteredRange> ranges;
  for (size_t i = 0; i < kPieces; ++i) ranges.push_back({region, i * 8, 8});
  std::vector<std::string> keys;
  std::atomic<size_t> freed{0};
  for (size_t i = 0; i < pull::kMaxClaimEntries + 1; ++i) {
    keys.push_back(fmt::format("k{}", i));
    (void)must(sender->put_ranges(keys.back(), ranges, [&] { ++freed; }));
  }
  PullMetadata address;
  address.source_host = sender->connection_info().host;
  address.source_port = sender->connection_info().zmq_port;
  std::vector<pull::GetRequest> requests;
  for (const std::string& key : keys) requests.push_back(from(address, key));
  // Some 6 MiB of grants, for a socket of some hundred KiB.
  std::vector<Result<pull::Received>> got = receiver->get_many(requests);
  for (auto& each : got) {
    EXPECT_EQ(first_wrong(must(std::move(each)).piece.bytes(), 1), std::nullopt);
  }
  EXPECT_TRUE(eventually([&] { return freed == keys.size(); }));
}

TEST_F(PullOwnershipTest, CloseEndsWhatWaitsOnEitherSide) {
  auto sender = connector("");
  auto receiver = connector(kReceiverRole);
  const pull::ConnectionInfo info = sender->connection_info();
  PullMetadata address;
  address.source_host = info.host;
  address.source_port = info.zmq_port;
  auto told =
      std::async(std::launch::async, [&] { return get(*receiver, "k", address, 60s).status(); });
  ASSERT_TRUE(eventually([&] { return sender->health().waiting == 1; }));
  EXPECT_OK(sender->close());
  EXPECT_REASON(Reason::kRefused, told.get());
  EXPECT_OK(sender->close());
  EXPECT_REASON(Reason::kClosed, sender->put("k", {}, {}).status());

  PullPeer other(json(""));
  auto stuck = std::async(std::launch::async,
                          [&] { return get(*receiver, "k", other.address(), 60s).status(); });
  ASSERT_TRUE(eventually([&] { return other.health().waiting == 1; }));
  EXPECT_OK(receiver->close());
  EXPECT_REASON(Reason::kClosed, stuck.get());
}

TEST_F(PullOwnershipTest, CloseWaitsForReadersAndSaysHowManyThereStillAre) {
  PullPeer sender(json(""));
  auto receiver = connector(kReceiverRole);
  (void)must(sender.put("k", 1, kPullBytes));
  {
    const pull::Claim held = claim(*receiver, sender.address(), "k");
    EXPECT_REASON(Reason::kReaderInside, sender.close(50ms));
  }
  PullPeer patient(json(""));
  (void)must(patient.put("k", 1, kPullBytes));
  pull::Claim held = claim(*receiver, patient.address(), "k");
  auto closed = std::async(std::launch::async, [&] { return patient.close(30s); });
  EXPECT_OK(read(*receiver, held, 1));
  receiver->finish(std::move(held));
  EXPECT_OK(closed.get());
}

TEST_F(PullOwnershipTest, ThreadsThatPutAndGetEndWhenEitherSideCloses) {
  for (const bool sender_first : {true, false}) {
    auto sender = connector("");
    auto receiver = connector(R"("role": "receiver", "ask_timeout": "300ms")");
    PullMetadata address;
    address.source_host = sender->connection_info().host;
    address.source_port = sender->connection_info().zmq_port;
    std::atomic<int> rounds{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&, key = fmt::format("k{}", i)] {
        const std::vector<std::byte> bytes(5000, std::byte{7});
        const std::span<const std::byte> piece = bytes;
        while (sender->put(key, std::span(&piece, 1)).ok()) rounds.fetch_add(1);
      });
      threads.emplace_back([&, key = fmt::format("k{}", i)] {
        while (true) {
          const auto got = get(*receiver, key, address, 50ms);
          if (!got.ok() && got.status().code() != Code::kTimedOut) break;
        }
      });
    }
    ASSERT_TRUE(eventually([&] { return rounds.load() > 20; }));
    EXPECT_OK((sender_first ? sender : receiver)->close());
    EXPECT_OK((sender_first ? receiver : sender)->close());
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_F(PullOwnershipTest, APieceOutlivesItsConnector) {
  PullPeer sender(json(""));
  (void)must(sender.put("k", 9, kPullBytes));
  pull::Piece piece;
  {
    auto receiver = connector(kReceiverRole);
    piece = must(get(*receiver, "k", sender.address())).piece;
  }
  EXPECT_EQ(first_wrong(piece.bytes(), 9), std::nullopt);
}

// --- Addresses, secrets, other carriers, foreign messages ---

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
  for (int i = 0; i < 10; ++i) (void)get(*receiver, "k", nowhere);
  EXPECT_LT(Deadline::Clock::now() - begin, 900ms);
  EXPECT_GE(receiver->health().timeouts, 11u);
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

// Answers as a sender of 0.30 does, for a connector whose engine holds the bytes.
class OldSender final : public zmq::MessageHandler {
 public:
  explicit OldSender(pull::OmniInfo info) : info_(std::move(info)) {}
  std::vector<zmq::Frames> on_message(zmq::Frames frames) override {
    const auto ask = pull::read_omni_request(frames.back());
    pull::Message answer = pull::omni_word(pull::kOmniAckError);
    if (ask.has_value() && ask->request == pull::OmniRequest::kCleanup) {
      cleanups.fetch_add(1);
      answer = pull::omni_word(pull::kOmniAckOk);
    } else if (ask.has_value()) {
      answer =
          ask->key == info_.key ? pull::omni_info(info_) : pull::omni_word(pull::kOmniNotFound);
    }
    return {{zmq::Bytes(), answer}};
  }
  std::atomic<int> cleanups{0};

 private:
  const pull::OmniInfo info_;
};

TEST_F(PullCompatTest, GetsFromASenderOf030OnlyIfToldTo) {
  auto holder = connector("");
  const auto region = must(holder->allocate_memory(kPullBytes));
  fill_pattern(region->bytes(), 8);
  const auto address = reinterpret_cast<uint64_t>(region->bytes().data());
  OldSender handler({"k",
                     holder->connection_info().rpc_port,
                     kPullBytes,
                     false,
                     {address, address + 1000},
                     {1000, kPullBytes - 1000}});
  auto context = must(zmq::Context::create(must(zmq::Library::load())));
  auto listener = must(zmq::Listener::start(must(zmq::Router::bind(context, {.host = "127.0.0.1"})),
                                            "old", handler));
  PullMetadata sender;
  sender.source_host = "127.0.0.1";
  sender.source_port = listener->endpoint().port;

  auto strict = connector(kReceiverRole);
  EXPECT_REASON(Reason::kVersion, get(*strict, "k", sender).status());
  auto lenient = connector(R"("role": "receiver", "compat_030": true)");
  for (int i = 1; i <= 2; ++i) {
    const pull::Received got = must(get(*lenient, "k", sender));
    EXPECT_EQ(first_wrong(got.piece.bytes(), 8), std::nullopt);
    EXPECT_FALSE(got.is_fast_path);
    EXPECT_TRUE(eventually([&] { return handler.cleanups.load() == i; }));
  }
  EXPECT_REASON(Reason::kNotFound, get(*lenient, "missing", sender).status());
  EXPECT_REASON(Reason::kTimedOut, get(*lenient, "missing", sender, 30ms).status());
}

}  // namespace
}  // namespace stagelink::test
