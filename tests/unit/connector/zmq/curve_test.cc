#include <fstream>
#include <optional>
#include <string>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "connector/zmq/curve_keys.h"
#include "integration/support/eventually.h"
#include "unit/connector/zmq/zmq_test.h"

namespace stagelink::zmq {
namespace {

using stagelink::test::eventually;
using test::make_context;
using test::send_text;
using test::soon;
using test::text_of;
using namespace std::chrono_literals;

std::shared_ptr<const CurveKeys> keys_of(char fill) {
  const std::string path = ::testing::TempDir() + "curve_secret_" + fill;
  std::ofstream(path) << std::string(48, fill);
  ::chmod(path.c_str(), 0600);
  auto keys = CurveKeys::from_file(path);
  ::unlink(path.c_str());
  if (!keys.ok()) throw std::runtime_error(keys.status().to_string());
  return *keys;
}

std::shared_ptr<Context> context_with(std::shared_ptr<const CurveKeys> keys) {
  auto context = Context::create(*Library::load(), std::move(keys));
  if (!context.ok()) throw std::runtime_error(context.status().to_string());
  return *context;
}

class CurveTest : public ::testing::Test {
 protected:
  // What the router has received when the caller's message should long have come.
  static std::optional<std::string> next(Router& router, const Deadline& deadline) {
    auto message = router.receive(deadline);
    if (!message.ok() || !message->has_value()) return std::nullopt;
    return text_of((*message)->back());
  }

  std::shared_ptr<Context> context_ = context_with(keys_of('s'));
  Router router_ = *Router::bind(context_, {});
};

TEST_F(CurveTest, WhoHoldsTheSecretIsAdmitted) {
  auto dealer = Dealer::connect(context_with(keys_of('s')), router_.endpoint());
  ASSERT_TRUE(dealer.ok());
  ASSERT_TRUE(send_text(*dealer, "hello").ok());
  EXPECT_EQ(next(router_, soon()), "hello");
  EXPECT_EQ(context_->door()->admitted(), 1U);
  EXPECT_EQ(context_->door()->refused(), 0U);
}

TEST_F(CurveTest, AnotherSecretAndNoneAreRefusedAndCounted) {
  for (const bool has_keys : {true, false}) {
    const uint64_t before = context_->door()->refused();
    auto dealer =
        Dealer::connect(has_keys ? context_with(keys_of('x')) : make_context(), router_.endpoint());
    ASSERT_TRUE(dealer.ok());
    EXPECT_TRUE(eventually([&] { return context_->door()->refused() > before; }));
    // There is no connection that could take a message.
    EXPECT_FALSE(send_text(*dealer, "let me in", Deadline::in(Duration::zero())).ok());
  }
  EXPECT_EQ(context_->door()->admitted(), 0U);
  // The right one gets in afterwards, and nothing of the others has come before it.
  auto dealer = Dealer::connect(context_with(keys_of('s')), router_.endpoint());
  ASSERT_TRUE(send_text(*dealer, "hello").ok());
  EXPECT_EQ(next(router_, soon()), "hello");
}

TEST_F(CurveTest, WhoKnowsTheListenersKeyAloneIsRefused) {
  // The listener's key, and a pair of one's own: keys that no secret gives.
  class OtherCaller : public Socket {
   public:
    static Result<Socket> connect(const Endpoint& peer, const CurveKeys& right,
                                  const CurveKeys& own) {
      SL_ASSIGN(Socket made, create(make_context(), 5 /* ZMQ_DEALER */, {}, false));
      const auto set = [&](int option, const CurveKey& key) {
        return made.library().functions().setsockopt(made.handle(), option, key.data(), key.size());
      };
      set(49, own.caller().secret_key);      // ZMQ_CURVE_SECRETKEY
      set(48, own.caller().public_key);      // ZMQ_CURVE_PUBLICKEY
      set(50, right.listener().public_key);  // ZMQ_CURVE_SERVERKEY
      const std::string url = "tcp://" + peer.to_string();
      if (made.library().functions().connect(made.handle(), url.c_str()) != 0) {
        return made.library().last_error("connecting");
      }
      return made;
    }
  };
  const auto right = keys_of('s');
  const auto own = keys_of('o');
  auto stranger = OtherCaller::connect(router_.endpoint(), *right, *own);
  ASSERT_TRUE(stranger.ok()) << stranger.status().to_string();
  EXPECT_TRUE(eventually([&] { return context_->door()->refused() >= 1; }));
  EXPECT_EQ(context_->door()->admitted(), 0U);
}

TEST_F(CurveTest, ManyListenersComeAndGo) {
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(Router::bind(context_, {}).ok());
  auto dealer = Dealer::connect(context_with(keys_of('s')), router_.endpoint());
  ASSERT_TRUE(send_text(*dealer, "hello").ok());
  EXPECT_EQ(next(router_, soon()), "hello");
}

TEST(CurveKeysTest, EverybodyDerivesTheSame) {
  const auto a = keys_of('s');
  const auto b = keys_of('s');
  EXPECT_EQ(a->listener().public_key, b->listener().public_key);
  EXPECT_EQ(a->caller().secret_key, b->caller().secret_key);
  EXPECT_NE(a->caller().public_key, a->listener().public_key);
  EXPECT_NE(a->caller().public_key, keys_of('t')->caller().public_key);
}

}  // namespace
}  // namespace stagelink::zmq
