#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "metrics/engine_metrics.h"
#include "stagelink/engine_options.h"

namespace stagelink::transport {

enum class Fault : uint8_t { kNone, kDrop, kDelay, kCut, kFlip };
const char* fault_name(Fault fault) noexcept;

// Decides from a seed which slices suffer which fault. Decision number n is a function of the seed
// and n alone, so a run in which slices are asked for in the same order has the same faults.
//
// Thread-safety: all methods may run at the same time.
class FaultInjector {
 public:
  struct Decision {
    Fault fault = Fault::kNone;
    uint64_t random = 0;  // For where and how long.
  };
  // Uses the seed and the rates of `options`. `metrics` counts faults and outlives the injector.
  FaultInjector(const EngineOptions& options, metrics::EngineMetrics& metrics) noexcept;

  // One decision for each of `slices` slices; the first fault counts.
  Decision next(uint64_t slices = 1) noexcept;

  // A delay of 1 to kMaxDelayMs milliseconds.
  static Duration delay_of(const Decision& decision) noexcept;
  static constexpr int64_t kMaxDelayMs = 5;
  // More slices than this count as this many.
  static constexpr uint64_t kMaxSlices = 4096;

 private:
  Fault fault_for(uint64_t random) const noexcept;

  const uint64_t seed_;
  const uint32_t drop_ppm_;
  const uint32_t delay_ppm_;
  const uint32_t cut_ppm_;
  const uint32_t flip_ppm_;
  metrics::EngineMetrics& metrics_;
  std::atomic<uint64_t> decisions_{0};
};

}  // namespace stagelink::transport
