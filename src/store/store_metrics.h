#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "stagelink/status.h"

namespace stagelink::store {

enum class StoreCall : uint8_t { kCreate, kSeal, kGet, kExists, kErase, kExpire };
inline constexpr size_t kStoreCalls = 6;

// What one ObjectStore has done, for metrics_text(): each call by its outcome, the bytes of sealed
// puts and of hits, and how long puts and gets took.
//
// Thread-safety: all methods may run at the same time.
class StoreMetrics {
 public:
  using Clock = std::chrono::steady_clock;

  void count(StoreCall call, Reason outcome) noexcept;
  void count_put_bytes(uint64_t bytes) noexcept;
  void count_got_bytes(uint64_t bytes) noexcept;
  // Of create and get: for the histogram of the call. Successes only.
  void observe(StoreCall call, Clock::duration taken) noexcept;

  // Prometheus text. `labels` goes between the braces of each sample.
  std::string text(std::string_view labels) const;

  static constexpr size_t kBuckets = 24;  // 1 us, 2 us, 4 us ... 4 s, and beyond.

 private:
  struct Histogram {
    std::array<std::atomic<uint64_t>, kBuckets> buckets{};
    std::atomic<uint64_t> nanoseconds{0};
  };

  std::array<std::array<std::atomic<uint64_t>, kReasonCount>, kStoreCalls> outcomes_{};
  std::atomic<uint64_t> put_bytes_{0};
  std::atomic<uint64_t> got_bytes_{0};
  Histogram create_;
  Histogram get_;
};

}  // namespace stagelink::store
