#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "base/unique_fd.h"

namespace stagelink::test {

// Stands between an engine and its peers like a broken switch: carries TCP connections to `target`
// and flips single bits once it is told to spoil.
class FlipProxy {
 public:
  // `target`: "127.0.0.1:port". One byte of `mean_bytes` has a flipped bit, in both directions.
  FlipProxy(const std::string& target, uint64_t seed, uint64_t mean_bytes);
  FlipProxy(const FlipProxy&) = delete;
  FlipProxy& operator=(const FlipProxy&) = delete;
  ~FlipProxy();

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void spoil(bool on) { spoils_ = on; }
  uint64_t flips() const { return flips_; }

 private:
  struct Way {
    int from;
    int to;
    std::vector<char> bytes;
    size_t sent = 0;
    bool ended = false;
  };
  struct Pair {
    UniqueFd near;
    UniqueFd far;
    Way ways[2];
  };

  void serve();
  void take_connection();
  bool carry(Way& way);
  void flip(std::vector<char>& bytes);

  const std::string target_;
  const uint64_t mean_bytes_;
  uint16_t port_ = 0;
  UniqueFd listener_;
  UniqueFd stop_;  // An eventfd.
  SplitMix64 random_;
  uint64_t until_flip_;
  std::atomic<bool> spoils_{false};
  std::atomic<uint64_t> flips_{0};
  std::vector<Pair> pairs_;
  std::thread thread_;
};

}  // namespace stagelink::test
