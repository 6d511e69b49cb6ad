// Whoever is not meant, or does not read to the end, takes nothing from those who do.

#include "connector/pull/messages/messages.h"
#include "connector/pull/messages/omni_messages.h"
#include "connector/zmq/socket.h"
#include "integration/connector/pull/old_sender.h"
#include "integration/connector/pull/pull_test.h"

namespace stagelink::test {
namespace {

class PullStrangerTest : public PullOwnershipTest {};

TEST_F(PullStrangerTest, CleanupsAndReleasesOfOthersAreHeardAndTakeNothing) {
  PullPeer sender(json(""));
  auto receiver = connector(kReceiverRole);
  (void)must(sender.put("k", 1, kPullBytes));
  pull::Claim held = claim(*receiver, sender.address(), "k");
  auto context = must(zmq::Context::create(must(zmq::Library::load())));
  auto dealer = must(
      zmq::Dealer::connect(context, {sender.address().source_host, sender.address().source_port}));
  pull::Message release;
  encode(pull::ReleaseMessage{{1, 2}, {3, 4}, {{1, true}, {2, true}}}, release);
  const pull::Message cleanup = pull::omni_request(pull::OmniRequest::kCleanup, "k");
  for (const pull::Message& message : {release, cleanup}) {
    const zmq::FrameSpan frames[] = {zmq::FrameSpan(), message};
    ASSERT_OK(dealer.send(frames, Deadline::in(10s)));
  }
  // The answer to the second: both have been dealt with.
  ASSERT_TRUE(must(dealer.receive(Deadline::in(20s))).has_value());
  EXPECT_EQ(metric_in(sender.metrics_text(), "pull_messages_refused_total"), 1);
  EXPECT_EQ(sender.health().offers, 1u);
  EXPECT_EQ(sender.health().claims, 1u);
  EXPECT_OK(read(*receiver, held, 1));
}

TEST_F(PullStrangerTest, MemoryThatIsTakenBackUnderAReaderIsGivenToNobody) {
  PullPeer sender(json(R"("memory_pool_size": 1048576, "put_timeout": "20ms")"));
  auto receiver = connector(kReceiverRole);
  constexpr uint64_t kBytes = 150 << 10;  // Six of them fill the pool.
  (void)must(sender.put("cleaned", 1, kBytes));
  pull::Claim cleaned = claim(*receiver, sender.address(), "cleaned");
  (void)must(sender.put("short", 2, kBytes, 1, /*ttl_ms=*/500));
  pull::Claim expiring = claim(*receiver, sender.address(), "short");
  EXPECT_TRUE(sender.cleanup("cleaned"));
  ASSERT_TRUE(eventually(
      [&] { return sender.metrics_text().find("how=\"expired\"} 1") != std::string::npos; }));
  for (const char* key : {"a", "b", "c", "d"}) (void)must(sender.put(key, 7, kBytes));
  const std::vector<std::byte> more(kBytes);
  EXPECT_REASON(Reason::kNoSpace, sender.put_bytes("e", more).status());
  EXPECT_OK(read(*receiver, cleaned, 1));
  EXPECT_OK(read(*receiver, expiring, 2));
  receiver->finish(std::move(cleaned));
  receiver->finish(std::move(expiring));
  EXPECT_TRUE(eventually([&] { return sender.put_bytes("e", more).ok(); }));
}

TEST_F(PullStrangerTest, WhoGivesUpOrFailsToReadLeavesThePayloadThere) {
  PullPeer sender(json(""));
  auto receiver = connector(kReceiverRole);
  (void)must(sender.put("k", 1, kPullBytes));
  { const pull::Claim dropped = claim(*receiver, sender.address(), "k"); }
  EXPECT_TRUE(eventually([&] { return sender.health().claims == 0; }));
  EXPECT_EQ(sender.health().offers, 1u);
  EXPECT_EQ(first_wrong(must(get(*receiver, "k", sender.address())).piece.bytes(), 1),
            std::nullopt);

  // A sender of 0.30 whose metadata lies about where the second half is: nothing is cleaned up.
  auto holder = connector("");
  const auto region = must(holder->allocate_memory(kPullBytes));
  const auto address = reinterpret_cast<uint64_t>(region->bytes().data());
  OldSender old({"k",
                 holder->connection_info().rpc_port,
                 kPullBytes,
                 true,
                 {address, address + (uint64_t{1} << 40)},
                 {1000, kPullBytes - 1000}});
  auto lenient = connector(R"("role": "receiver", "compat_030": true)");
  EXPECT_FALSE(get(*lenient, "k", old.address()).ok());
  EXPECT_EQ(lenient->health().errors, 1u);
  EXPECT_TRUE(eventually([&] { return lenient->health().pool_used == 0; }));
  EXPECT_OK(lenient->close());  // All that it had to say has been said.
  EXPECT_EQ(old.cleanups(), 0);
}

}  // namespace
}  // namespace stagelink::test
