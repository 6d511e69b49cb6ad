#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "connector/encoder_cache/consumer/fetcher.h"
#include "connector/encoder_cache/metrics.h"
#include "integration/connector/encoder_cache/cache_test.h"
#include "integration/support/child_process.h"

namespace stagelink::test {

class PushTest : public CacheTest {
 protected:
  ec::CacheOptions push_options(uint64_t pool = 16 * kEcMib) const {
    ec::CacheOptions options = cache_options(pool);
    options.ec_mode = "push";
    options.push_wait_timeout = 30s;
    options.pull_timeout = 60s;
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
  // Nothing is left of any transfer; what is idle has given way.
  static void expect_nothing_held(ec::Fetcher& fetching) {
    EXPECT_TRUE(reserved(fetching, 0)) << fetching.desk()->usage().reservations;
    EXPECT_TRUE(eventually([&] { return fetching.consumer().usage().handed_on == 0; }));
    (void)fetching.desk()->give_way(fetching.consumer().usage().pool_size);
    EXPECT_TRUE(eventually([&] { return fetching.consumer().usage().pool_used == 0; }));
  }
  static uint64_t pushes(const auto& end, Reason reason) { return end.metrics().pushes(reason); }
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

}  // namespace stagelink::test
