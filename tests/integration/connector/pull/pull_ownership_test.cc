// Who owns which bytes and when: puts, ends of time, cleanups, deaths and closes while others read.

#include <atomic>
#include <future>
#include <thread>

#include "connector/pull/messages/messages.h"
#include "integration/connector/pull/pull_test.h"

namespace stagelink::test {
namespace {

using pull::PullMetadata;

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
  auto receiver = connector(R"("role": "receiver", "ask_timeout": "2s")");
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
  auto receiver = connector(R"("role": "receiver", "ask_timeout": "200ms")");
  (void)must(sender.put("k", 1, 100, 0));
  ASSERT_TRUE(eventually([&] { return get(*receiver, "k", sender.address()).ok(); }));
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

TEST_F(PullOwnershipTest, ReadersBeyondTheBoundAreRefusedByName) {
  PullPeer sender(json(""));
  EXPECT_OK(sender.put("k", 1, 100, pull::kMaxReaders).status());
  const Status status = sender.put("k", 2, 100, pull::kMaxReaders + 1).status();
  EXPECT_REASON(Reason::kInvalidArgument, status);
  EXPECT_NE(status.message().find("readers: 1000001; expected 0"), std::string_view::npos)
      << status.to_string();
  EXPECT_EQ(sender.health().errors, 1u);
  auto receiver = connector(kReceiverRole);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(first_wrong(must(get(*receiver, "k", sender.address())).piece.bytes(), 1),
              std::nullopt);
  }
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

}  // namespace
}  // namespace stagelink::test
