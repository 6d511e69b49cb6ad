#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "base/unique_fd.h"

namespace stagelink::test {

// Stands between an engine and its peers like a broken switch: carries TCP connections to `target`,
// and once it is told so, flips single bits, loses everything, or resets a connection.
class FlipProxy {
 public:
  // `target`: "127.0.0.1:port". One byte of `mean_bytes` has a flipped bit, in both directions.
  FlipProxy(const std::string& target, uint64_t seed, uint64_t mean_bytes);
  FlipProxy(const FlipProxy&) = delete;
  FlipProxy& operator=(const FlipProxy&) = delete;
  ~FlipProxy();

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void spoil(bool on) { spoils_ = on; }
  // One bit of the byte that comes when `bytes` more have passed that way; to the target: way 0.
  void spoil_one(int way, int64_t bytes) { one_[way] = bytes; }
  uint64_t flips() const { return flips_; }
  // From now on nothing comes through, and nobody is told.
  void swallow(bool on) { swallows_ = on; }
  // The first connection that carries this many bytes from now on is reset; once.
  void reset_after(int64_t bytes) {
    ++reset_order_;
    reset_after_ = bytes;
  }
  bool has_reset() const { return reset_after_ < 0; }
  // Of all that were made.
  uint64_t connections() const { return connections_; }

 private:
  struct Way {
    int number;
    int from;
    int to;
    std::vector<char> bytes;
    size_t sent = 0;
    size_t moved = 0;  // In the last round.
    bool ended = false;
  };
  struct Pair {
    UniqueFd near;
    UniqueFd far;
    Way ways[2];
    uint64_t reset_order = 0;  // That `carried` belongs to.
    int64_t carried = 0;
  };

  void serve();
  void take_connection();
  bool carry(Way& way);
  void count(Pair& pair, size_t bytes);
  void flip(std::vector<char>& bytes);
  void flip_one(Way& way);

  const std::string target_;
  const uint64_t mean_bytes_;
  uint16_t port_ = 0;
  UniqueFd listener_;
  UniqueFd stop_;  // An eventfd.
  SplitMix64 random_;
  uint64_t until_flip_;
  std::atomic<bool> spoils_{false};
  std::atomic<int64_t> one_[2] = {-1, -1};  // Negative: nothing to spoil.
  std::atomic<uint64_t> flips_{0};
  std::atomic<bool> swallows_{false};
  std::atomic<int64_t> reset_after_{-1};
  std::atomic<uint64_t> reset_order_{0};
  std::atomic<uint64_t> connections_{0};
  std::vector<Pair> pairs_;
  std::thread thread_;
};

}  // namespace stagelink::test
