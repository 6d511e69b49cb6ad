// How long producers and consumers wait for room and for peers that do not answer.

#include <future>

#include <nlohmann/json.hpp>

#include "connector/zmq/socket.h"
#include "integration/connector/encoder_cache/cache_test.h"
#include "integration/support/child_process.h"

namespace stagelink::test {
namespace {

class CacheWaitTest : public CacheTest {};

TEST_F(CacheWaitTest, ASaveWaitsForRoomThatAReaderGivesBack) {
  ec::CacheOptions options = cache_options(4 * kEcMib);
  options.space_timeout = 60s;
  auto owner = producer(options);
  ASSERT_OK(save(*owner, "read", 1, 3 * kEcMib));
  auto reader = consumer(cache_options());
  // It is claimed until the reader has room for it, which is not before the other one has gone.
  ec::CacheOptions small = cache_options(4 * kEcMib);
  auto slow = consumer(small);
  auto held = load(*slow, request("read", owner->producer_zmq(), 3 * kEcMib));
  ASSERT_OK(held.status());
  auto stuck = std::async(std::launch::async, [&] {
    ec::LoadTerms patient;
    patient.timeout = 60s;
    return load(*slow, request("read", owner->producer_zmq(), 3 * kEcMib), patient).status();
  });
  ASSERT_TRUE(eventually([&] { return owner->usage().leases == 1; }));
  auto saved = std::async(std::launch::async, [&] { return save(*owner, "next", 2, 3 * kEcMib); });
  EXPECT_EQ(saved.wait_for(100ms), std::future_status::timeout);
  held = Result<ec::Embedding>(Status(Reason::kCancelled, "let go"));
  EXPECT_OK(stuck.get());  // A load waits for room in the same way.
  EXPECT_OK(saved.get());
  EXPECT_FALSE(owner->has("read"));
  const auto got = must(load(*reader, request("next", owner->producer_zmq(), 3 * kEcMib)));
  EXPECT_EQ(first_wrong(got.piece.bytes(), 2), std::nullopt);
}

TEST_F(CacheWaitTest, TheOptionBoundsALoadFromAProducerThatHasStopped) {
  ChildProcess child("ec-producer");
  child.channel().send(fmt::format(
      R"({{"host": "127.0.0.1", "registry_http_port": 0, "runtime_dir": "{}",
           "buffer_size": "16MiB", "zmq_port": 0}})",
      runtime_dir()));
  const std::string address = child.channel().receive_text().value_or("");
  child.channel().send("save h 1 1048576");
  ASSERT_EQ(child.channel().receive_text(), "ok");
  ec::CacheOptions options = cache_options();
  options.pull_timeout = 300ms;
  options.control_timeout = 20s;
  auto reader = consumer(options);
  ASSERT_OK(load(*reader, request("h", address), {.timeout = 60s}).status());
  child.stop();
  const auto begin = std::chrono::steady_clock::now();
  const Status status = load(*reader, request("h", address)).status();
  const auto taken = std::chrono::steady_clock::now() - begin;
  child.resume();
  EXPECT_TRUE(status.code() == Code::kTimedOut || status.code() == Code::kUnreachable)
      << status.to_string();
  EXPECT_LT(taken, 10s);
  EXPECT_EQ(reader->usage().in_flight, 0u);
}

// A peer of the original protocol: it registers memory, asks for an embedding, and stops.
int ask_and_stop(Channel& parent) {
  using Json = nlohmann::json;
  const auto start = parent.receive_text();
  if (!start.has_value()) return 1;
  const Json said = Json::parse(*start);
  EngineOptions options;
  options.name = "stuck-peer";
  options.runtime_dir = said["runtime_dir"];
  options.bind = "127.0.0.1:0";
  options.transports = {"tcp"};  // A write waits for its answer.
  auto engine = must(Engine::create(options));
  const PrivateMemory tensor(4096);
  const Region region = must(engine->register_memory(tensor.data(), tensor.size()));
  auto context = must(zmq::Context::create(must(zmq::Library::load())));
  auto socket = must(zmq::Dealer::connect(
      context, must(parse_endpoint(said["producer"].get<std::string>().substr(6)))));
  const std::string text = Json{
      {"op", "pull"},
      {"mm_hash", "h"},
      {"dst_session", engine->address()},
      {"dst_ptr", reinterpret_cast<uint64_t>(tensor.data())},
      {"nbytes", 4096}}.dump();
  const zmq::FrameSpan frames[] = {{}, std::as_bytes(std::span(text.data(), text.size()))};
  const auto ask = [&] { return socket.send(frames, Deadline::in(10s)); };
  // Once to the end, so that both know each other.
  if (!ask().ok() || !must(socket.receive(Deadline::in(20s))).has_value()) return 1;
  parent.send("pulled");
  while (const auto word = parent.receive_text(60s)) {
    if (!ask().ok()) return 1;
    parent.send("asked");
  }
  return 0;
}
const RoleRegistration kStuckPeer("ec-stuck-peer", ask_and_stop);

TEST_F(CacheWaitTest, APeerThatStopsKeepsNeitherOthersNorCloseFromEnding) {
  ec::CacheOptions options = cache_options();
  options.pull_timeout = 2s;
  auto owner = producer(options);
  ASSERT_OK(save(*owner, "h", 9, 4096));
  std::vector<std::unique_ptr<ChildProcess>> peers;
  for (int i = 0; i < 3; ++i) {  // One more than there are threads that write.
    peers.push_back(std::make_unique<ChildProcess>("ec-stuck-peer"));
    peers.back()->channel().send(
        nlohmann::json{{"runtime_dir", runtime_dir()}, {"producer", owner->producer_zmq()}}.dump());
    ASSERT_EQ(peers.back()->channel().receive_text(30s), "pulled");
    peers.back()->channel().send("again");
    ASSERT_EQ(peers.back()->channel().receive_text(30s), "asked");
    peers.back()->stop();
  }
  // Those who read by themselves are not held up.
  auto reader = consumer(cache_options());
  EXPECT_OK(load(*reader, request("h", owner->producer_zmq(), 4096)).status());
  const auto begin = std::chrono::steady_clock::now();
  owner.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
  for (const auto& peer : peers) peer->resume();
}

}  // namespace
}  // namespace stagelink::test
