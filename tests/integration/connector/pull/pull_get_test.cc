// What a get gives, over each way that bytes can take.

#include <future>

#include <fmt/format.h>

#include "integration/connector/pull/pull_test.h"

namespace stagelink::test {
namespace {

using pull::GetRequest;
using pull::PullMetadata;
using pull::Received;

constexpr uint64_t kKib = 1024;
constexpr uint64_t kMib = 1024 * kKib;

class PullGetTest : public PullTest, public ::testing::WithParamInterface<const char*> {
 protected:
  std::string protocol() const { return fmt::format(R"("protocol": "{}")", GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Each, PullGetTest, ::testing::Values("shm", "cma", "unix", "tcp"),
                         [](const auto& each) { return std::string(each.param); });

TEST_P(PullGetTest, GivesTheBytesThatAnotherProcessHasPut) {
  if (std::string_view(GetParam()) == "cma" && !kernel_copies()) {
    GTEST_SKIP() << "process_vm_readv does not work here";
  }
  PullPeer sender(json(protocol()));
  auto receiver = connector(protocol() + R"(, "role": "receiver")");
  for (const uint64_t bytes : {uint64_t{1}, 4 * kKib, 64 * kKib + 3, 5 * kMib}) {
    const std::string key = fmt::format("k@0_1 {}", bytes);
    const PullMetadata put = must(sender.put(key, bytes, bytes));
    const Received got = must(get(*receiver, key, sender.address()));
    EXPECT_EQ(got.bytes, bytes);
    EXPECT_EQ(got.generation, put.generation);
    EXPECT_EQ(first_wrong(got.piece.bytes(), bytes), std::nullopt);
  }
  // Each had one reader, and is free.
  EXPECT_TRUE(eventually([&] { return sender.health().pool_used == 0; }));
  EXPECT_EQ(sender.health().claims, 0u);
}

TEST_P(PullGetTest, ReadsRegisteredMemoryInPlaceIntoGivenMemory) {
  if (std::string_view(GetParam()) == "shm") GTEST_SKIP() << "private memory is not mapped";
  if (std::string_view(GetParam()) == "cma" && !kernel_copies()) {
    GTEST_SKIP() << "process_vm_readv does not work here";
  }
  PullPeer sender(json(protocol()));
  auto receiver = connector(protocol() + R"(, "role": "receiver")");
  constexpr uint64_t kBytes = 24 * 16 * kKib;
  (void)must(sender.put_ranges("layers", 7, kBytes, 24));
  const PrivateMemory registered(kBytes / 2 + 1);
  const PrivateMemory strange(kBytes / 2 - 1);
  const auto region = must(receiver->register_memory(registered.data(), registered.size()));
  const std::vector<std::span<std::byte>> into = {registered.bytes(), strange.bytes()};
  const Received got =
      must(receiver->get({.key = "layers", .metadata = &sender.address(), .into = into}));
  EXPECT_EQ(got.bytes, kBytes);
  EXPECT_FALSE(got.piece);
  EXPECT_EQ(first_wrong(registered.bytes(), 7), std::nullopt);
  EXPECT_EQ(first_wrong(strange.bytes(), 7, registered.size()), std::nullopt);
  EXPECT_TRUE(registered.canaries_intact() && strange.canaries_intact());
}

class PullWaitTest : public PullTest {};

TEST_F(PullWaitTest, LooksOnceAndSaysThatThereIsNothing) {
  PullPeer sender(json(""));
  auto receiver = connector(R"("role": "receiver")");
  EXPECT_REASON(Reason::kNotFound, get(*receiver, "k", sender.address()).status());
  EXPECT_EQ(receiver->health().misses, 1u);
  EXPECT_EQ(receiver->health().errors, 0u);
}

TEST_F(PullWaitTest, ParksAtTheSenderUntilThePut) {
  PullPeer sender(json(""));
  auto receiver = connector(R"("role": "receiver")");
  auto got = std::async(std::launch::async,
                        [&] { return get(*receiver, "later", sender.address(), 30s); });
  ASSERT_TRUE(eventually([&] { return sender.health().waiting == 1; }));
  (void)must(sender.put("later", 3, 100));
  const Received received = must(got.get());
  EXPECT_EQ(first_wrong(received.piece.bytes(), 3), std::nullopt);
}

TEST_F(PullWaitTest, EndsAtItsTimeAndLeavesNothingBehind) {
  PullPeer sender(json(""));
  auto receiver = connector(R"("role": "receiver")");
  const auto begin = Deadline::Clock::now();
  EXPECT_REASON(Reason::kTimedOut, get(*receiver, "never", sender.address(), 100ms).status());
  EXPECT_GE(Deadline::Clock::now() - begin, 100ms);
  EXPECT_EQ(receiver->health().timeouts, 1u);
  EXPECT_TRUE(eventually([&] { return sender.health().waiting == 0; }));
}

TEST_F(PullWaitTest, ASenderThatStartsLaterIsWaitedFor) {
  PullMetadata address;
  address.source_host = "127.0.0.1";
  {
    auto former = connector("");
    address.source_port = former->connection_info().zmq_port;
  }
  auto receiver = connector(R"("role": "receiver", "ask_timeout": "100ms")");
  auto got = std::async(std::launch::async, [&] { return get(*receiver, "k", address, 30s); });
  PullPeer sender(json(fmt::format(R"("zmq_port": {})", address.source_port)));
  (void)must(sender.put("k", 3, 100));
  EXPECT_EQ(first_wrong(must(got.get()).piece.bytes(), 3), std::nullopt);
}

TEST_F(PullWaitTest, AKeyThatIsMissingHoldsUpNoOther) {
  PullPeer sender(json(""));
  auto receiver = connector(R"("role": "receiver")");
  (void)must(sender.put("there", 1, kMib));
  auto got = std::async(std::launch::async, [&] {
    const std::vector<GetRequest> requests = {
        {.key = "later", .metadata = &sender.address(), .into = {}},
        {.key = "there", .metadata = &sender.address(), .into = {}}};
    return receiver->get_many(requests, {.wait = 30s});
  });
  // Read and released, while the other is waited for.
  ASSERT_TRUE(eventually([&] { return sender.health().offers == 0; }));
  EXPECT_EQ(sender.health().waiting, 1u);
  (void)must(sender.put("later", 2, 1000));
  auto results = got.get();
  EXPECT_EQ(first_wrong(must(std::move(results[0])).piece.bytes(), 2), std::nullopt);
  EXPECT_EQ(first_wrong(must(std::move(results[1])).piece.bytes(), 1), std::nullopt);
}

TEST_F(PullWaitTest, AFloodOfFailuresIsAHandfulOfLinesAndTheirCount) {
  PullPeer sender(json(R"("max_waiting": 0)"));
  const auto lines = [&](uint32_t keys, uint32_t others) {
    testing::internal::CaptureStderr();
    PullPeer receiver(json(kReceiverRole));
    EXPECT_REASON(Reason::kBusy, receiver.get_many(keys, sender.address(), 30s));
    const std::string log = testing::internal::GetCapturedStderr();
    const std::string rest = fmt::format("gets of {} further keys in the same call failed", others);
    EXPECT_EQ(log.find(rest) != std::string::npos, others > 0) << log;
    EXPECT_EQ(metric_in(receiver.metrics_text(), "pull_gets_total", "busy"), keys);
    size_t count = 0;
    for (size_t at = 0; (at = log.find(" failed: busy", at)) != std::string::npos; ++at) ++count;
    return count;
  };
  EXPECT_EQ(lines(5, 0), 5u);
  EXPECT_EQ(lines(6, 1), 6u);
  EXPECT_EQ(lines(2000, 1995), 6u);
}

TEST_F(PullWaitTest, OfManyKeysOfSeveralSendersEachHasItsOwnOutcome) {
  PullPeer first(json(""));
  PullPeer second(json(""));
  auto receiver = connector(R"("role": "receiver")");
  (void)must(first.put("a", 1, 64 * kKib));
  (void)must(second.put("b", 2, kMib));
  const std::vector<GetRequest> requests = {
      {.key = "a", .metadata = &first.address(), .into = {}},
      {.key = "missing", .metadata = &first.address(), .into = {}},
      {.key = "b", .metadata = &second.address(), .into = {}},
      {.key = "", .metadata = &second.address(), .into = {}},
  };
  auto got = receiver->get_many(requests);
  ASSERT_EQ(got.size(), 4u);
  EXPECT_EQ(first_wrong(must(std::move(got[0])).piece.bytes(), 1), std::nullopt);
  EXPECT_REASON(Reason::kNotFound, got[1].status());
  EXPECT_EQ(first_wrong(must(std::move(got[2])).piece.bytes(), 2), std::nullopt);
  EXPECT_REASON(Reason::kInvalidArgument, got[3].status());
}

}  // namespace
}  // namespace stagelink::test
