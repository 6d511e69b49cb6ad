// Peers that know no leases: the message `pull`, its answers, and what it can never reach.

#include <nlohmann/json.hpp>

#include "connector/encoder_cache/metrics.h"
#include "connector/zmq/socket.h"
#include "integration/connector/encoder_cache/cache_test.h"

namespace stagelink::test {
namespace {

using Json = nlohmann::json;

class SeedPullTest : public CacheTest {
 protected:
  void SetUp() override {
    CacheTest::SetUp();
    owner_ = producer(cache_options());
    ASSERT_OK(save(*owner_, "h", 9, 4096));
    peer_ = make_engine("seed-peer");
    auto context = must(zmq::Context::create(must(zmq::Library::load())));
    socket_.emplace(must(
        zmq::Dealer::connect(context, must(parse_endpoint(owner_->producer_zmq().substr(6))))));
  }
  void TearDown() override {
    socket_.reset();
    peer_.reset();
    owner_.reset();
    CacheTest::TearDown();
  }
  // As a REQ socket sends and receives.
  Json ask(std::string_view text) {
    const zmq::FrameSpan frames[] = {{}, std::as_bytes(std::span(text.data(), text.size()))};
    EXPECT_OK(socket_->send(frames, Deadline::in(10s)));
    const auto answer = must(socket_->receive(Deadline::in(20s)));
    if (!answer.has_value()) return {};
    return Json::parse(text_of(answer->back()), nullptr, false);
  }
  Json pull(std::string_view hash, uint64_t address, uint64_t nbytes) {
    return ask(Json{
        {"op", "pull"},
        {"mm_hash", std::string(hash)},
        {"dst_session", peer_->address()},
        {"dst_ptr", address},
        {"nbytes",
         nbytes}}.dump());
  }

  std::unique_ptr<ec::Producer> owner_;
  std::unique_ptr<Engine> peer_;
  std::optional<zmq::Dealer> socket_;
};

TEST_F(SeedPullTest, AnEmbeddingGoesWhereItsPeerHasRegisteredMemory) {
  const PrivateMemory tensor(4096);
  const Region region = must(peer_->register_memory(tensor.data(), tensor.size()));
  EXPECT_EQ(pull("h", reinterpret_cast<uint64_t>(tensor.data()), 4096),
            Json({{"ok", true}, {"mooncake_ret", 0}}));
  EXPECT_EQ(first_wrong(tensor.bytes(), 9), std::nullopt);
  EXPECT_TRUE(tensor.canaries_intact());
}

TEST_F(SeedPullTest, WhatCannotBePulledIsSaidInTheKnownWords) {
  const PrivateMemory tensor(4096);
  const Region region = must(peer_->register_memory(tensor.data(), tensor.size()));
  const auto address = reinterpret_cast<uint64_t>(tensor.data());
  const auto refused = [](std::string_view why) {
    return Json{{"ok", false}, {"err", std::string(why)}};
  };
  EXPECT_EQ(ask(R"({"op": "push"})"), refused("unknown op"));
  EXPECT_EQ(ask("{}"), refused("unknown op"));
  EXPECT_EQ(pull("other", address, 4096), refused("unknown mm_hash"));
  EXPECT_EQ(pull("h", address, 4095), refused("size mismatch"));
  for (const char* broken :
       {"{", R"({"op": "pull"})", R"({"op": "pull", "mm_hash": 7})",
        R"({"op":"pull","mm_hash":"h","dst_session":"x","dst_ptr":-1,"nbytes":4096})",
        R"({"op":"pull","mm_hash":"h","dst_session":"127.0.0.1:1","dst_ptr":1,"nbytes":4096})"}) {
    const Json answer = ask(broken);
    EXPECT_EQ(answer.value("ok", true), false) << broken;
    EXPECT_FALSE(answer.value("err", "").empty()) << broken;
  }
  // The listener goes on.
  EXPECT_EQ(pull("h", address, 4096).value("ok", false), true);
}

TEST_F(SeedPullTest, NothingOutsideWhatTheSessionHasRegisteredIsTouched) {
  const PrivateMemory tensor(4096);
  const PrivateMemory canary(8192);
  const PrivateMemory sealed(4096);
  const Region region = must(peer_->register_memory(tensor.data(), tensor.size()));
  const Region read_only =
      must(peer_->register_memory(sealed.data(), sealed.size(), {.access = Access::kReadOnly}));
  const auto address = reinterpret_cast<uint64_t>(tensor.data());
  const auto others = reinterpret_cast<uint64_t>(canary.data());
  for (const uint64_t wrong :
       {others, address - 8, address + 8, ~uint64_t{0} - 7, uint64_t{0},
        reinterpret_cast<uint64_t>(sealed.data()), reinterpret_cast<uint64_t>(owner_.get())}) {
    const Json answer = pull("h", wrong, 4096);
    EXPECT_EQ(answer.value("ok", true), false) << wrong;
    EXPECT_EQ(answer.value("mooncake_ret", 0), -1) << wrong;
  }
  EXPECT_EQ(first_not(tensor.bytes(), kUntouched), std::nullopt);
  EXPECT_EQ(first_not(canary.bytes(), kUntouched), std::nullopt);
  EXPECT_EQ(first_not(sealed.bytes(), kUntouched), std::nullopt);
  EXPECT_TRUE(tensor.canaries_intact() && canary.canaries_intact() && sealed.canaries_intact());
}

TEST_F(SeedPullTest, APickleOrNoiseIsRefusedAndTheNextOneIsAnswered) {
  const std::string pickle("\x80\x04\x95\x1f\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix", 18);
  for (const std::string& noise : {pickle, std::string(100'000, '{'), std::string(1, '\0')}) {
    const zmq::FrameSpan frames[] = {{}, std::as_bytes(std::span(noise.data(), noise.size()))};
    ASSERT_OK(socket_->send(frames, Deadline::in(10s)));
    EXPECT_TRUE(must(socket_->receive(Deadline::in(10s))).has_value());
  }
  EXPECT_EQ(ask(R"({"op": "?"})"), Json({{"ok", false}, {"err", "unknown op"}}));
}

}  // namespace
}  // namespace stagelink::test
