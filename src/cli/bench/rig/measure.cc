#include "cli/bench/rig/measure.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <unistd.h>

#include "base/deadline.h"
#include "cli/bench/rig/percentile.h"
#include "cli/bench/rig/process_load.h"

namespace stagelink::cli::bench {

namespace {

constexpr double kMostQueueWait = 0.03;
constexpr size_t kFewestQuiet = 10;
constexpr size_t kDistinctPicks = 16;

// The samples of one repetition, one for each contender.
struct Repetition {
  std::vector<Sample> samples;
  bool disturbed = false;
};

double queue_wait_of_both(pid_t target) {
  return queue_wait_us(::getpid()) + (target > 0 ? queue_wait_us(target) : 0);
}

Status run_one(const Contender& contender, const Picks& picks, pid_t target, Repetition& out) {
  Sample sample;
  const double waited_us = queue_wait_of_both(target);
  const double cpu_target_us = target > 0 ? cpu_time_us(target) : 0;
  const double cpu_us = cpu_time_us(::getpid());
  SL_TRY(contender(picks, sample));
  sample.cpu_initiator_us = cpu_time_us(::getpid()) - cpu_us;
  sample.cpu_target_us = target > 0 ? cpu_time_us(target) - cpu_target_us : 0;
  const double wait_us = queue_wait_of_both(target) - waited_us;
  if (wait_us > kMostQueueWait * sample.wall_us) out.disturbed = true;
  out.samples.push_back(sample);
  // A rest of the same length: a process that just slept is not cut off in its next repetition.
  const double rest_us = std::min(sample.wall_us, 10000.0);
  std::this_thread::sleep_for(std::chrono::microseconds(static_cast<int64_t>(rest_us)));
  return Status();
}

// Contenders take turns in being first, so that none of them always finds the other's cache.
Result<Repetition> run_all(const std::vector<Contender>& contenders, const Picks& picks,
                           pid_t target, size_t turn) {
  Repetition repetition;
  const size_t count = contenders.size();
  const size_t first = turn % count;
  for (size_t i = 0; i < count; ++i) {
    SL_TRY(run_one(contenders[(first + i) % count], picks, target, repetition));
  }
  std::rotate(repetition.samples.begin(),
              repetition.samples.begin() + static_cast<std::ptrdiff_t>((count - first) % count),
              repetition.samples.end());
  return repetition;
}

}  // namespace

double Measurement::p(size_t contender, double Sample::*field, double part) const {
  std::vector<double> values;
  for (const Sample& sample : samples[contender]) values.push_back(sample.*field);
  return percentile(std::move(values), part);
}

Result<Measurement> measure(const Shape& shape, const std::vector<Contender>& contenders,
                            const MeasureOptions& options) {
  std::vector<Picks> picks;
  for (size_t i = 0; i < kDistinctPicks; ++i) picks.push_back(make_picks(shape, options.seed + i));

  for (uint32_t i = 0; i < options.warm_ups; ++i) {
    SL_TRY(run_all(contenders, picks[i % kDistinctPicks], options.target, i).status());
  }
  std::vector<Repetition> quiet;
  std::vector<Repetition> disturbed;
  const Deadline deadline = Deadline::in(options.cap);
  while (quiet.size() < options.repetitions) {
    const size_t turn = quiet.size() + disturbed.size();
    if (deadline.passed() && turn >= options.repetitions) break;
    SL_ASSIGN(Repetition repetition,
              run_all(contenders, picks[turn % kDistinctPicks], options.target, turn));
    (repetition.disturbed ? disturbed : quiet).push_back(std::move(repetition));
  }

  Measurement measurement;
  measurement.dropped = static_cast<uint32_t>(disturbed.size());
  measurement.quiet = quiet.size() >= std::min<size_t>(kFewestQuiet, options.repetitions);
  if (!measurement.quiet) {
    quiet.insert(quiet.end(), disturbed.begin(), disturbed.end());
    measurement.dropped = 0;
  }
  measurement.samples.resize(contenders.size());
  for (const Repetition& repetition : quiet) {
    for (size_t i = 0; i < contenders.size(); ++i) {
      measurement.samples[i].push_back(repetition.samples[i]);
    }
  }
  return measurement;
}

}  // namespace stagelink::cli::bench
