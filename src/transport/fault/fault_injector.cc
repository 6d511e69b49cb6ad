#include "transport/fault/fault_injector.h"

#include <algorithm>
#include <chrono>

#include "base/random.h"

namespace stagelink::transport {
namespace {

constexpr uint64_t kMillion = 1'000'000;
constexpr uint64_t kStride = 0x9e3779b97f4a7c15ULL;

}  // namespace

const char* fault_name(Fault fault) noexcept {
  switch (fault) {
    case Fault::kNone: return "none";
    case Fault::kDrop: return "drop";
    case Fault::kDelay: return "delay";
    case Fault::kCut: return "cut";
    case Fault::kFlip: return "flip";
  }
  return "unknown";
}

FaultInjector::FaultInjector(const EngineOptions& options, metrics::EngineMetrics& metrics) noexcept
    : seed_(options.fault_seed),
      drop_ppm_(options.fault_drop_ppm),
      delay_ppm_(options.fault_delay_ppm),
      cut_ppm_(options.fault_cut_ppm),
      flip_ppm_(options.fault_flip_ppm),
      metrics_(metrics) {}

FaultInjector::Decision FaultInjector::next(uint64_t slices) noexcept {
  const uint64_t draws = std::clamp<uint64_t>(slices, 1, kMaxSlices);
  // Relaxed: only the numbers have to be distinct.
  const uint64_t first = decisions_.fetch_add(draws, std::memory_order_relaxed);
  for (uint64_t i = 0; i < draws; ++i) {
    const uint64_t random = SplitMix64::mix(seed_ + (first + i + 1) * kStride);
    const Fault fault = fault_for(random);
    if (fault == Fault::kNone) continue;
    metrics_.add(metrics::Counter::kFaultsInjected);
    return {fault, SplitMix64::mix(random)};
  }
  return {};
}

Fault FaultInjector::fault_for(uint64_t random) const noexcept {
  uint64_t at = random % kMillion;
  const auto hit = [&at](uint32_t ppm) {
    if (at < ppm) return true;
    at -= ppm;
    return false;
  };
  if (hit(drop_ppm_)) return Fault::kDrop;
  if (hit(delay_ppm_)) return Fault::kDelay;
  if (hit(cut_ppm_)) return Fault::kCut;
  if (hit(flip_ppm_)) return Fault::kFlip;
  return Fault::kNone;
}

Duration FaultInjector::delay_of(const Decision& decision) noexcept {
  return std::chrono::milliseconds(1 + static_cast<int64_t>(decision.random % kMaxDelayMs));
}

}  // namespace stagelink::transport
