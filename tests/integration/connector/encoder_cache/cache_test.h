#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "connector/encoder_cache/consumer/consumer.h"
#include "connector/encoder_cache/producer/producer.h"
#include "integration/support/engine_test.h"

namespace stagelink::test {

namespace ec = encoder_cache;

inline constexpr uint64_t kEcMib = 1 << 20;

// Rows of 1024 floats.
inline ec::EmbeddingInfo info_of(uint64_t bytes) {
  return {bytes, {bytes / 4096, 1024}, "float32"};
}

class CacheTest : public EngineTest {
 protected:
  // Loopback, a small pool, times of a test.
  ec::CacheOptions cache_options(uint64_t pool = 16 * kEcMib) const {
    ec::CacheOptions options;
    options.host = "127.0.0.1";
    options.registry_http_port = 0;
    options.runtime_dir = runtime_dir();
    options.buffer_size = pool;
    options.pull_timeout = 10s;
    options.space_timeout = 1ms;
    options.control_timeout = 2s;
    return options;
  }
  std::unique_ptr<ec::Producer> producer(const ec::CacheOptions& options) const {
    return must(ec::Producer::create(options));
  }
  std::unique_ptr<ec::Consumer> consumer(const ec::CacheOptions& options) const {
    return must(ec::Consumer::create(options, /*may_hand_on=*/false));
  }
  static Status save(ec::Producer& producer, std::string_view hash, uint64_t seed,
                     uint64_t bytes = kEcMib) {
    std::vector<std::byte> data(bytes);
    fill_pattern(data, seed);
    return producer.save(hash, info_of(bytes), data);
  }
  static ec::LoadRequest request(std::string_view hash, const std::string& producer_zmq,
                                 uint64_t bytes = kEcMib) {
    return {std::string(hash), {{info_of(bytes), producer_zmq, 0}}, {}};
  }
  static Result<ec::Embedding> load(ec::Consumer& consumer, const ec::LoadRequest& request,
                                    const ec::LoadTerms& terms = {}) {
    return std::move(consumer.load(std::span(&request, 1), terms).front());
  }
};

}  // namespace stagelink::test
