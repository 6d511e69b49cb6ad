// What is said to a consumer that takes pushes: nothing is believed, and nobody's is anybody
// else's.

#include <nlohmann/json.hpp>

#include "connector/zmq/socket.h"
#include "integration/connector/encoder_cache/push_test.h"

namespace stagelink::test {
namespace {

using Json = nlohmann::json;

// What a peer may say to the desk, in JSON over ZeroMQ.
class PushWordsTest : public PushTest {
 protected:
  void SetUp() override {
    PushTest::SetUp();
    fetching_ = fetcher(push_options());
    auto context = must(zmq::Context::create(must(zmq::Library::load())));
    const std::string address = fetching_->consumer_zmq().substr(6);
    socket_.emplace(must(zmq::Dealer::connect(context, must(parse_endpoint(address)))));
  }
  void TearDown() override {
    socket_.reset();
    fetching_.reset();
    PushTest::TearDown();
  }
  // As a REQ socket sends and receives.
  Json ask(const std::string& text) {
    const zmq::FrameSpan frames[] = {{}, std::as_bytes(std::span(text))};
    EXPECT_OK(socket_->send(frames, Deadline::in(10s)));
    const auto answer = must(socket_->receive(Deadline::in(20s)));
    if (!answer.has_value()) return {};
    return Json::parse(text_of(answer->back()), nullptr, false);
  }
  static Json reserve(std::string_view transfer, std::string_view hash) {
    return {{"op", "reserve"},   {"transfer_id", transfer}, {"mm_hash", hash},
            {"nbytes", 1 << 20}, {"shape", {256, 1024}},    {"dtype", "float32"}};
  }
  static Json with(Json message, const char* field, const Json& value) {
    message[field] = value;
    return message;
  }

  std::unique_ptr<ec::Fetcher> fetching_;
  std::optional<zmq::Dealer> socket_;
};

// E3: whatever is announced wrongly is refused before a byte is allocated.
TEST_F(PushWordsTest, NoByteIsTakenForWhatCannotBe) {
  const Json good = reserve("t", "h");
  for (const auto& [field, value] :
       std::vector<std::pair<const char*, Json>>{{"shape", {-8, -32768}},
                                                 {"shape", {0, 1024}},
                                                 {"shape", {256, 1024, 2}},
                                                 {"shape", {1, 1, 1, 1, 1, 1, 1, 1, 262144}},
                                                 {"shape", "256"},
                                                 {"shape", {1 << 31, 1u << 31, 4}},
                                                 {"nbytes", -1},
                                                 {"nbytes", 1.5},
                                                 {"nbytes", (1 << 20) - 1},
                                                 {"dtype", "object"},
                                                 {"dtype", 7},
                                                 {"mm_hash", ""},
                                                 {"mm_hash", std::string(257, 'h')},
                                                 {"transfer_id", ""},
                                                 {"transfer_id", std::string(257, 't')},
                                                 {"identity", std::string(4096, 'i')},
                                                 {"wait", -1},
                                                 {"secret", "00"},
                                                 {"op", "take"}}) {
    const Json answer = ask(with(good, field, value).dump());
    EXPECT_EQ(answer.value("ok", true), false) << field << " " << value;
    EXPECT_FALSE(answer.value("error", "").empty()) << field << " " << value;
  }
  for (const std::string& noise :
       {std::string("{"), std::string("{}"), std::string(R"({"op":"reserve_batch","items":[]})"),
        std::string(190'000, '{'), std::string(R"({"op":"status","id":-1})")}) {
    EXPECT_EQ(ask(noise).value("ok", true), false);
  }
  EXPECT_EQ(fetching_->consumer().usage().pool_used, 0u);
  EXPECT_EQ(fetching_->desk()->usage().arrivals, 0u);
  Json answer = ask(with(good, "transfer_id", std::string(256, 't')).dump());
  EXPECT_EQ(answer.value("ok", false), true) << answer;
  EXPECT_EQ(answer["result"]["reservation_id"].get<std::string>().size(), 32u);
}

// E4: what is somebody's stays somebody's; and the words for many at a time.
TEST_F(PushWordsTest, NobodyEndsOrCompletesATransferThatHeHasNotReserved) {
  const Json result = ask(with(reserve("t1", "h1"), "id", 5).dump());
  EXPECT_EQ(result["id"], 5);
  const std::string reservation = result["result"]["reservation_id"];
  const std::string secret = result["result"]["secret"];
  const std::string zeros(32, '0');
  for (const auto& [id, word] : std::vector<std::pair<std::string, std::string>>{
           {"", ""}, {"", secret}, {reservation, ""}, {reservation, zeros}, {zeros, secret}}) {
    Json message = {{"transfer_id", "t1"}, {"reservation_id", id}, {"secret", word}};
    message["producer_zmq"] = "tcp://127.0.0.1:1";
    message["generation"] = 1;
    message["abandon"] = true;
    for (const char* op : {"cancel", "complete"}) {
      EXPECT_EQ(ask(with(message, "op", op).dump()).value("ok", true), false) << op << id;
    }
  }
  EXPECT_FALSE(ask(R"({"op":"cancel","transfer_id":"t1"})").value("ok", true));
  const Json status = ask(R"({"op":"status","transfer_id":"t1"})")["result"];
  EXPECT_EQ(status["mm_hash"], "h1");
  EXPECT_EQ(status["ready"], false);
  EXPECT_FALSE(status.contains("secret"));
  EXPECT_TRUE(ask(R"({"op":"status","transfer_id":"t9"})")["result"].is_null());
  const Json cancel = {
      {"op", "cancel"}, {"transfer_id", "t1"}, {"reservation_id", reservation}, {"secret", secret}};
  EXPECT_EQ(ask(cancel.dump())["result"], Json({{"cancelled", true}}));
  EXPECT_EQ(ask(cancel.dump())["result"], Json({{"cancelled", false}}));
  expect_nothing_held(*fetching_);

  auto owner = producer(push_options());
  Json batch = {{"op", "reserve_batch"}, {"items", {reserve("a", "h"), Json(), reserve("b", "h")}}};
  const Json answers = ask(batch.dump())["result"]["items"];
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0]["result"]["write"], true);
  EXPECT_EQ(answers[1]["ok"], false);
  EXPECT_EQ(answers[2]["result"]["write"], false);
  batch = {{"op", "complete_batch"}, {"items", Json::array()}};
  for (const size_t i : {size_t{0}, size_t{2}}) {
    batch["items"].push_back({{"transfer_id", i == 0 ? "a" : "b"},
                              {"reservation_id", answers[i]["result"]["reservation_id"]},
                              {"secret", answers[i]["result"]["secret"]},
                              {"producer_zmq", owner->producer_zmq()},
                              {"generation", 1}});
  }
  // Nothing is handed on there: each fails, and is told so.
  const Json failed = ask(batch.dump())["result"]["items"];
  ASSERT_EQ(failed.size(), 2u);
  for (const Json& item : failed) EXPECT_EQ(item["reason"], "not_found") << item;
  expect_nothing_held(*fetching_);
}

}  // namespace
}  // namespace stagelink::test
