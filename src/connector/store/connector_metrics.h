#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "stagelink/status.h"

namespace stagelink::store_connector {

// Where the time of a put and of a get goes.
enum class Phase : uint8_t {
  kPutTurn,   // Waiting for the window and for a turn.
  kPutSpace,  // Waiting for memory of the store.
  kPutWrite,  // Filling it.
  kPutSeal,
  kGetWait,  // Until the object is there.
  kGetDecode,
  kGetDelete,
};
inline constexpr size_t kPhases = 7;

// What one connector has done. Every get that gives nothing counts under the reason why.
//
// Thread-safety: all methods may run at the same time.
class ConnectorMetrics {
 public:
  using Clock = std::chrono::steady_clock;

  void count_put(Reason outcome, uint64_t bytes) noexcept;
  void count_get(Reason outcome, uint64_t bytes) noexcept;
  void observe(Phase phase, Clock::duration taken) noexcept;

  uint64_t puts(Reason outcome) const noexcept;
  uint64_t gets(Reason outcome) const noexcept;
  uint64_t put_bytes() const noexcept;
  uint64_t get_bytes() const noexcept;

  // Prometheus text. `labels` goes between the braces of each sample.
  std::string text(std::string_view labels) const;

  static constexpr size_t kBuckets = 13;  // 1 us, 4 us, 16 us ... 4.2 s, and beyond.

 private:
  struct Histogram {
    std::array<std::atomic<uint64_t>, kBuckets> buckets{};
    std::atomic<uint64_t> nanoseconds{0};
  };
  using Outcomes = std::array<std::atomic<uint64_t>, kReasonCount>;

  void append_outcomes(std::string& out, std::string_view name, std::string_view labels,
                       const Outcomes& outcomes) const;

  Outcomes puts_{};
  Outcomes gets_{};
  std::atomic<uint64_t> put_bytes_{0};
  std::atomic<uint64_t> get_bytes_{0};
  std::array<Histogram, kPhases> phases_{};
};

}  // namespace stagelink::store_connector
