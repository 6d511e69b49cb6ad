#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "cli/bench/rig/work_unit.h"
#include "stagelink/engine_options.h"
#include "stagelink/result.h"

namespace stagelink::cli::bench {

// What one repetition took.
struct Sample {
  double wall_us = 0;
  double submit_us = 0;  // Until the submitting call returned; contenders without one leave it 0.
  double cpu_initiator_us = 0;
  double cpu_target_us = 0;
};

// One way to move the ranges. `run` sets wall_us and submit_us.
using Contender = std::function<Status(const Picks& picks, Sample& sample)>;

struct MeasureOptions {
  uint32_t repetitions = 20;
  uint32_t warm_ups = 3;
  Duration cap = std::chrono::seconds(12);
  pid_t target = -1;
  uint64_t seed = 1;
};

// The samples of each contender, in the order of the contenders; all have the same length.
struct Measurement {
  std::vector<std::vector<Sample>> samples;
  uint32_t dropped = 0;  // Repetitions that other load disturbed.
  bool quiet = true;     // False: too few were undisturbed within the cap, so all were kept.

  double p(size_t contender, double Sample::*field, double part) const;
  double median_us(size_t contender) const { return p(contender, &Sample::wall_us, 0.5); }
};

// Runs the contenders in turn on the same ranges, other ranges in each repetition, until
// `repetitions` of them were undisturbed: in those the threads of both processes waited less than
// 3 % of the time for a core.
Result<Measurement> measure(const Shape& shape, const std::vector<Contender>& contenders,
                            const MeasureOptions& options);

}  // namespace stagelink::cli::bench
