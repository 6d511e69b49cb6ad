#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "stagelink/status.h"

namespace stagelink::pull {

// Where the time of a put and of a get goes.
enum class PullPhase : uint8_t {
  kPutSpace,  // Waiting for memory of the pool.
  kPutCopy,
  kGetQuery,  // Until the claim is taken.
  kGetAlloc,
  kGetRead,
  kGetTotal,
};
inline constexpr size_t kPullPhases = 6;

// What one connector has done. Every get that gives nothing counts under the reason why.
//
// Thread-safety: all methods may run at the same time.
class PullMetrics {
 public:
  using Clock = std::chrono::steady_clock;
  using Outcomes = std::array<std::atomic<uint64_t>, kReasonCount>;

  void count_put(Reason outcome, uint64_t bytes) noexcept;
  void count_get(Reason outcome, uint64_t bytes) noexcept;
  void observe(PullPhase phase, Clock::duration taken) noexcept;
  void count_reconnect() noexcept { reconnects_.fetch_add(1, std::memory_order_relaxed); }

  uint64_t puts(Reason outcome) const noexcept;
  uint64_t gets(Reason outcome) const noexcept;
  uint64_t put_bytes() const noexcept;
  uint64_t get_bytes() const noexcept;
  uint64_t reconnects() const noexcept;

  // Prometheus text. `labels` goes between the braces of each sample.
  std::string text(std::string_view labels) const;

  static constexpr size_t kBuckets = 13;  // 1 us, 4 us, 16 us ... 4.2 s, and beyond.

 private:
  struct Histogram {
    std::array<std::atomic<uint64_t>, kBuckets> buckets{};
    std::atomic<uint64_t> nanoseconds{0};
  };

  Outcomes puts_{};
  Outcomes gets_{};
  std::atomic<uint64_t> put_bytes_{0};
  std::atomic<uint64_t> get_bytes_{0};
  std::atomic<uint64_t> reconnects_{0};
  std::array<Histogram, kPullPhases> phases_{};
};

// One sample with its heading, for gauges and counters that are kept elsewhere.
void append_sample(std::string& out, std::string_view name, std::string_view help,
                   std::string_view kind, std::string_view labels, double value);

}  // namespace stagelink::pull
