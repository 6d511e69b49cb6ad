#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "stagelink/status.h"

namespace stagelink::encoder_cache {

// What one side of an encoder cache has done, by what came of it.
//
// Thread-safety: all methods may run at the same time.
class CacheMetrics {
 public:
  using Outcomes = std::array<std::atomic<uint64_t>, kReasonCount>;

  void count_save(Reason outcome, uint64_t bytes) noexcept;
  void count_load(Reason outcome, uint64_t bytes) noexcept;
  void count_peer_pull(Reason outcome) noexcept;  // By a peer that knows no leases.
  void count_push(Reason outcome) noexcept;       // A transfer, at either side.
  void count_evictions(uint64_t count) noexcept;
  void count_joined(uint64_t count) noexcept;  // Loads of hashes that were on their way already.
  void count_fallback() noexcept;              // Encoded here because it could not be had.

  uint64_t saves(Reason outcome) const noexcept;
  uint64_t loads(Reason outcome) const noexcept;
  uint64_t peer_pulls(Reason outcome) const noexcept;
  uint64_t pushes(Reason outcome) const noexcept;
  uint64_t evictions() const noexcept { return evictions_.load(); }
  uint64_t joined() const noexcept { return joined_.load(); }
  uint64_t fallbacks() const noexcept { return fallbacks_.load(); }
  uint64_t loaded_bytes() const noexcept { return loaded_bytes_.load(); }

  // Prometheus text. `labels` goes between the braces of each sample.
  std::string text(std::string_view labels) const;

 private:
  Outcomes saves_{};
  Outcomes loads_{};
  Outcomes peer_pulls_{};
  Outcomes pushes_{};
  std::atomic<uint64_t> saved_bytes_{0};
  std::atomic<uint64_t> loaded_bytes_{0};
  std::atomic<uint64_t> evictions_{0};
  std::atomic<uint64_t> joined_{0};
  std::atomic<uint64_t> fallbacks_{0};
};

}  // namespace stagelink::encoder_cache
