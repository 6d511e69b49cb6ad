// Embeddings that producers push: what is reserved, who is told, and what ends it.

#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "connector/encoder_cache/consumer/fetcher.h"
#include "connector/encoder_cache/metrics.h"
#include "connector/zmq/socket.h"
#include "integration/connector/encoder_cache/cache_test.h"
#include "integration/support/child_process.h"

namespace stagelink::test {
namespace {

using Json = nlohmann::json;

// A producer in a process of its own: "push TRANSFER CONSUMER HASH BYTES", "save HASH SEED BYTES".
int push_producer(Channel& parent) {
  const auto start = parent.receive_text();
  if (!start.has_value()) return 1;
  const config::ConfigNode extra =
      must(config::parse_config(*start, config::ConfigSyntax::kJson, "t"));
  auto producer = must(ec::Producer::create(must(ec::load_cache_options(extra))));
  parent.send(producer->producer_zmq());
  while (const auto text = parent.receive_text(60s)) {
    char verb[16] = {};
    char a[64] = {};
    char b[64] = {};
    char c[64] = {};
    unsigned long long bytes = 0;
    std::sscanf(text->c_str(), "%15s %63s %63s %63s %llu", verb, a, b, c, &bytes);
    if (std::string_view(verb) == "push") {
      parent.send(producer->push({a, b, c, info_of(bytes)}).to_string());
    } else {
      std::vector<std::byte> data(std::stoull(c));
      fill_pattern(data, std::stoull(b));
      parent.send(producer->save(a, info_of(data.size()), data).to_string());
    }
  }
  return 0;
}
const RoleRegistration kPushProducer("ec-push-producer", push_producer);

class PushModeTest : public CacheTest {
 protected:
  ec::CacheOptions push_options(uint64_t pool = 16 * kEcMib) const {
    ec::CacheOptions options = cache_options(pool);
    options.ec_mode = "push";
    options.push_wait_timeout = 30s;
    options.space_timeout = 10s;
    return options;
  }
  static std::unique_ptr<ec::Fetcher> fetcher(const ec::CacheOptions& options) {
    return must(ec::Fetcher::create(options, /*readers=*/1));
  }
  std::string child_json(std::string_view keys = R"("checksum": false)") const {
    return fmt::format(R"({{"host": "127.0.0.1", "ec_mode": "push", "runtime_dir": "{}",
                            "control_timeout": "5s", "buffer_size": "16MiB", {}}})",
                       runtime_dir(), keys);
  }
  static std::string ask(ChildProcess& child, const std::string& text) {
    child.channel().send(text);
    return child.channel().receive_text().value_or("gone");
  }
  static ec::PushOrder order(std::string transfer, const ec::Fetcher& fetching,
                             std::string_view hash, uint64_t bytes = kEcMib) {
    return {std::move(transfer), fetching.consumer_zmq(), std::string(hash), info_of(bytes)};
  }
  static bool ends(const ec::Fetcher& fetching, std::string_view hash, ec::FetchState state) {
    return eventually([&] { return fetching.look(hash).state == state; });
  }
  static bool reserved(ec::Fetcher& fetching, uint64_t count) {
    return eventually([&] {
      const ec::PushUsage usage = fetching.desk()->usage();
      return usage.reservations == count && usage.queued == 0;
    });
  }
  // What a worker reads is what was saved.
  void expect_bytes(ec::Fetcher& fetching, std::string_view hash, uint64_t seed,
                    uint64_t bytes = kEcMib) {
    const ec::FetchView view = fetching.look(hash);
    ASSERT_EQ(view.state, ec::FetchState::kReady) << view.why.to_string();
    const PrivateMemory tensor(bytes);
    auto worker = consumer(cache_options(kEcMib));
    ASSERT_OK(load(*worker, {std::string(hash), {view.place}, tensor.bytes(), true}).status());
    EXPECT_EQ(first_wrong(tensor.bytes(), seed), std::nullopt);
    EXPECT_TRUE(tensor.canaries_intact());
  }
};

TEST_F(PushModeTest, RoomIsTakenBeforeAnEmbeddingIsMadeAndItIsReadAsSoonAsItIs) {
  auto fetching = fetcher(push_options());
  ChildProcess child("ec-push-producer");
  (void)ask(child, child_json());
  fetching->expect("h1", "t1");
  EXPECT_EQ(fetching->look("h1").state, ec::FetchState::kExpected);
  ASSERT_EQ(ask(child, fmt::format("push t1 {} h1 2097152", fetching->consumer_zmq())), "ok");
  ASSERT_TRUE(reserved(*fetching, 1));
  EXPECT_GE(fetching->consumer().usage().pool_used, 2097152u);
  EXPECT_EQ(fetching->look("h1").state, ec::FetchState::kExpected);
  ASSERT_EQ(ask(child, "save h1 7 2097152"), "ok");
  ASSERT_TRUE(ends(*fetching, "h1", ec::FetchState::kReady)) << fetching->look("h1").why.to_string();
  expect_bytes(*fetching, "h1", 7, 2097152);
  fetching->handed_on("h1");
  EXPECT_TRUE(reserved(*fetching, 0));
  EXPECT_EQ(fetching->look("h1").state, ec::FetchState::kUnknown);
  // It stays until its room is wanted: the next one of the same picture is here already.
  EXPECT_EQ(fetching->desk()->usage().idle, 1u);
  ASSERT_EQ(ask(child, fmt::format("push t2 {} h1 2097152", fetching->consumer_zmq())), "ok");
  fetching->expect("h1", "t2");
  ASSERT_TRUE(ends(*fetching, "h1", ec::FetchState::kReady));
  expect_bytes(*fetching, "h1", 7, 2097152);
  EXPECT_EQ(fetching->consumer().metrics().loads(Reason::kOk), 1u);
}

}  // namespace
}  // namespace stagelink::test
