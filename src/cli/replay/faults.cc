#include "cli/replay/faults.h"

#include <algorithm>
#include <chrono>

namespace stagelink::cli::replay {
namespace {

// How many faults of each kind to expect in a run, if nothing else bounds them.
constexpr double kDrops = 6;
constexpr double kDelays = 60;
constexpr double kCuts = 6;
constexpr double kFlips = 20;
// The share of the largest request's attempts that may fail by drops and cuts.
constexpr double kMaxFailing = 0.25;
constexpr double kMillion = 1e6;
constexpr auto kTimeout = std::chrono::seconds(3);

uint32_t ppm(double events, double units, double max_ppm) {
  const double rate = std::min(events / units * kMillion, max_ppm);
  return static_cast<uint32_t>(std::clamp(rate, 1.0, kMillion));
}

}  // namespace

void set_faults(uint64_t seed, const WorkloadSize& size, RankConfig& config) {
  if (seed == 0) return;
  // The engine draws once for each slice; a piece is at most a slice in most layouts.
  const double pieces = static_cast<double>(size.distinct_blocks) * config.layout.planes();
  const double largest = static_cast<double>(size.largest) * config.layout.planes();
  const double max_ppm = kMaxFailing / 2 / largest * kMillion;
  config.fault_seed = seed;
  config.fault_drop_ppm = ppm(kDrops, pieces, max_ppm);
  config.fault_cut_ppm = ppm(kCuts, pieces, max_ppm);
  config.fault_delay_ppm = ppm(kDelays, pieces, kMillion);
  config.fault_flip_ppm = ppm(kFlips, pieces, kMillion);
  config.timeout = kTimeout;
}

}  // namespace stagelink::cli::replay
