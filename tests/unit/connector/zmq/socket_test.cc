#include "connector/zmq/socket.h"

#include <fstream>

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include "base/unique_fd.h"
#include "integration/support/tsan_suppressions.h"
#include "unit/connector/zmq/zmq_test.h"

namespace stagelink::zmq {
namespace {

using test::bytes_of;
using test::make_context;
using test::send_text;
using test::soon;
using test::text_of;
using namespace std::chrono_literals;

bool has_ipv6() {
  std::ifstream file("/proc/net/if_inet6");
  return file.peek() != std::ifstream::traits_type::eof();
}

TEST(ZmqLibraryTest, AMissingLibraryIsNamedWithItsPackages) {
  const auto library = Library::load("/nowhere/libzmq.so.5");
  ASSERT_FALSE(library.ok());
  EXPECT_EQ(library.status().reason(), Reason::kNotFound);
  EXPECT_NE(library.status().message().find("libzmq5"), std::string_view::npos);
  EXPECT_NE(library.status().message().find("pyzmq"), std::string_view::npos);
}

TEST(ZmqLibraryTest, ALibraryWithoutTheFunctionsIsRefused) {
  const auto library = Library::load("libc.so.6");
  ASSERT_FALSE(library.ok());
  EXPECT_EQ(library.status().reason(), Reason::kNotFound);
}

TEST(ZmqRouterTest, EveryAddressIsListenedOnOnlyWhenAllowed) {
  const auto context = make_context();
  for (const char* const host : {"*", "0.0.0.0", "::"}) {
    const auto refused = Router::bind(context, {.host = host});
    ASSERT_FALSE(refused.ok()) << host;
    EXPECT_EQ(refused.status().reason(), Reason::kInvalidArgument);
  }
  EXPECT_TRUE(Router::bind(context, {.host = "0.0.0.0", .allow_wildcard = true}).ok());
}

TEST(ZmqRouterTest, Port0IsAnyFreeOneAndIsTold) {
  const auto context = make_context();
  auto router = Router::bind(context, {});
  ASSERT_TRUE(router.ok()) << router.status().to_string();
  EXPECT_EQ(router->endpoint().host, "127.0.0.1");
  EXPECT_GT(router->endpoint().port, 0);
  const auto second = Router::bind(context, {.port = router->endpoint().port});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().reason(), Reason::kPortInUse);
}

TEST(ZmqRouterTest, ListensAtAnInterface) {
  const auto router = Router::bind(make_context(), {.interface = "lo"});
  ASSERT_TRUE(router.ok()) << router.status().to_string();
  EXPECT_FALSE(Router::bind(make_context(), {.interface = "no-such-if"}).ok());
}

class ZmqPairTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ZmqPairTest, MessagesGoBothWays) {
  if (std::string_view(GetParam()) == "::1" && !has_ipv6()) GTEST_SKIP() << "no IPv6 here";
  const auto context = make_context();
  auto router = Router::bind(context, {.host = GetParam()});
  ASSERT_TRUE(router.ok()) << router.status().to_string();
  auto dealer = Dealer::connect(context, router->endpoint());
  ASSERT_TRUE(dealer.ok());
  ASSERT_TRUE(send_text(*dealer, "question").ok());
  auto message = router->receive(soon());
  ASSERT_TRUE(message.ok() && message->has_value());
  ASSERT_EQ((*message)->size(), 2U);
  EXPECT_EQ(text_of((**message)[1]), "question");
  const Bytes answer = bytes_of("answer");
  const FrameSpan frames[] = {(**message)[0], FrameSpan(), answer};
  ASSERT_TRUE(router->send(frames, soon()).ok());
  auto reply = dealer->receive(soon());
  ASSERT_TRUE(reply.ok() && reply->has_value());
  EXPECT_EQ(**reply, (Frames{Bytes(), answer}));
}

INSTANTIATE_TEST_SUITE_P(Hosts, ZmqPairTest, ::testing::Values("127.0.0.1", "::1"));

TEST(ZmqDealerTest, AMessageForNobodyFailsAtItsDeadline) {
  const auto context = make_context();
  const test::DeadPort dead;
  auto dealer = Dealer::connect(context, dead.endpoint());
  ASSERT_TRUE(dealer.ok());
  EXPECT_EQ(send_text(*dealer, "hello", Deadline::in(20ms)).reason(), Reason::kTimedOut);
}

TEST(ZmqRouterTest, AnAnswerToAPeerThatIsNotThereFails) {
  auto router = Router::bind(make_context(), {});
  ASSERT_TRUE(router.ok());
  const Bytes name = bytes_of("nobody");
  const FrameSpan frames[] = {name, name};
  EXPECT_EQ(router->send(frames, soon()).reason(), Reason::kUnreachable);
}

TEST(ZmqRouterTest, AWakeUpEndsTheWait) {
  auto router = Router::bind(make_context(), {});
  ASSERT_TRUE(router.ok());
  const UniqueFd wake(::eventfd(1, EFD_CLOEXEC));
  auto message = router->receive(Deadline::in(Deadline::kLongest), wake.get());
  ASSERT_TRUE(message.ok());
  EXPECT_FALSE(message->has_value());
}

TEST(ZmqRouterTest, FramesBeyondTheBoundAreNotKept) {
  const auto context = make_context();
  auto router = Router::bind(context, {}, {.max_frames = 3});
  ASSERT_TRUE(router.ok());
  auto dealer = Dealer::connect(context, router->endpoint());
  ASSERT_TRUE(dealer.ok());
  const Bytes part = bytes_of("part");
  const std::vector<FrameSpan> many(100, part);
  ASSERT_TRUE(dealer->send(many, soon()).ok());
  ASSERT_TRUE(send_text(*dealer, "next").ok());
  auto message = router->receive(soon());
  ASSERT_TRUE(message.ok() && message->has_value());
  EXPECT_EQ((*message)->size(), 4U);
  message = router->receive(soon());
  ASSERT_TRUE(message.ok() && message->has_value());
  EXPECT_EQ(text_of((*message)->back()), "next");
}

TEST(ZmqRouterTest, AFrameOfTheLargestSizeArrivesAndALargerOneDoesNot) {
  const auto context = make_context();
  auto router = Router::bind(context, {}, {.max_frame_bytes = 1000});
  ASSERT_TRUE(router.ok());
  auto sender = Dealer::connect(context, router->endpoint());
  auto other = Dealer::connect(context, router->endpoint());
  ASSERT_TRUE(sender.ok() && other.ok());
  ASSERT_TRUE(send_text(*sender, std::string(1001, 'x')).ok());
  ASSERT_TRUE(send_text(*other, std::string(1000, 'y')).ok());
  auto message = router->receive(soon());
  ASSERT_TRUE(message.ok() && message->has_value());
  EXPECT_EQ(text_of((*message)->back()), std::string(1000, 'y'));
}

}  // namespace
}  // namespace stagelink::zmq
