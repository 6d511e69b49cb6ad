#include "cli/replay/faults.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "engine/batch/plan.h"

namespace stagelink::cli::replay {
namespace {

// How many faults of each kind to expect in a run, if nothing else bounds them.
constexpr double kDrops = 4;
constexpr double kDelays = 8;
constexpr double kCuts = 4;
constexpr double kFlips = 12;
// The share of the largest request's attempts that may fail by drops, and by cuts.
constexpr double kMaxFailing = 0.1;
// The share of slices that may be delayed, and flipped, in runs of few slices: faults are drawn one
// for a slice, so the shares of all kinds must stay below one together.
constexpr double kMaxDelayed = 0.25;
constexpr double kMaxFlipped = 0.3;
constexpr double kMillion = 1e6;
constexpr auto kTimeout = std::chrono::seconds(3);

// The engine draws once for each slice, or frame.
double slices(uint64_t blocks, const RankConfig& config) {
  const uint64_t bytes = blocks * config.layout.block_bytes();
  uint64_t slice_bytes = EngineOptions{}.slice_bytes;
  if (config.transports.front() == "cma") slice_bytes *= engine::kCmaSliceFactor;
  return std::ceil(static_cast<double>(bytes) / static_cast<double>(slice_bytes));
}

uint32_t ppm(double rate) {
  return static_cast<uint32_t>(std::clamp(rate * kMillion, 1.0, kMillion));
}

}  // namespace

void set_faults(uint64_t seed, const WorkloadSize& size, RankConfig& config) {
  if (seed == 0) return;
  const double all = slices(size.distinct_blocks, config);
  const double largest = slices(size.largest, config);
  config.fault_seed = seed;
  config.fault_drop_ppm = ppm(std::min(kDrops / all, kMaxFailing / largest));
  config.fault_cut_ppm = ppm(std::min(kCuts / all, kMaxFailing / largest));
  config.fault_delay_ppm = ppm(std::min(kDelays / all, kMaxDelayed));
  config.fault_flip_ppm = ppm(std::min(kFlips / all, kMaxFlipped));
  config.timeout = kTimeout;
}

}  // namespace stagelink::cli::replay
