#include "cli/bench/rig/measure.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "cli/bench/rig/process_load.h"

namespace stagelink::cli::bench {
namespace {

constexpr Shape kShape{.block_bytes = 8, .blocks = 4, .most_slots = 64};

// A contender that reports times which it did not take: queue waits are small beside a second.
Contender pretend(double wall_us, std::vector<std::vector<uint64_t>>& seen) {
  return [wall_us, &seen](const Picks& picks, Sample& sample) {
    seen.push_back(picks.local);
    sample.wall_us = wall_us;
    return Status();
  };
}

MeasureOptions quick(uint32_t repetitions) {
  MeasureOptions options;
  options.repetitions = repetitions;
  options.warm_ups = 1;
  return options;
}

TEST(MeasureTest, EveryContenderGetsTheSamePicksOnceInEachRepetition) {
  std::vector<std::vector<uint64_t>> first;
  std::vector<std::vector<uint64_t>> second;
  const auto measured = measure(kShape, {pretend(1e6, first), pretend(2e6, second)}, quick(4));
  ASSERT_TRUE(measured.ok()) << measured.status().to_string();
  EXPECT_EQ(first, second);
  EXPECT_GE(first.size(), 5U);
}

TEST(MeasureTest, SamplesStayWithTheirContenderThoughTheyTakeTurns) {
  std::vector<std::vector<uint64_t>> seen;
  const auto measured =
      measure(kShape, {pretend(1e6, seen), pretend(2e6, seen), pretend(3e6, seen)}, quick(7));
  ASSERT_TRUE(measured.ok()) << measured.status().to_string();
  const Measurement& measurement = *measured;
  for (size_t contender = 0; contender < 3; ++contender) {
    ASSERT_EQ(measurement.samples[contender].size(), 7U);
    for (const Sample& sample : measurement.samples[contender]) {
      EXPECT_DOUBLE_EQ(sample.wall_us, 1e6 * static_cast<double>(contender + 1));
    }
  }
}

TEST(MeasureTest, FailureOfAContenderEndsTheMeasurement) {
  const Contender broken = [](const Picks&, Sample&) { return Status(Reason::kPeerLost, "gone"); };
  const auto measured = measure(kShape, {broken}, quick(4));
  EXPECT_EQ(measured.status().code(), Code::kPeerLost);
}

TEST(MeasureTest, AllRepetitionsAreKeptWhenEachOneWasDisturbed) {
  // Beside a negative time even no wait for a core is too long.
  std::vector<std::vector<uint64_t>> seen;
  MeasureOptions options = quick(3);
  options.cap = Duration::zero();
  const auto measured = measure(kShape, {pretend(-1, seen)}, options);
  ASSERT_TRUE(measured.ok()) << measured.status().to_string();
  const Measurement& measurement = *measured;
  EXPECT_FALSE(measurement.quiet);
  EXPECT_EQ(measurement.samples[0].size(), 3U);
  EXPECT_EQ(measurement.dropped, 0U);
}

TEST(ProcessLoadTest, CpuTimeOfThisProcessGrowsWithWork) {
  const double before_us = cpu_time_us(::getpid());
  const double end_us = now_us() + 20e3;
  while (now_us() < end_us) {
  }
  EXPECT_GT(cpu_time_us(::getpid()) - before_us, 1e3);
}

TEST(ProcessLoadTest, CoreThatDoesNotExistIsRefused) {
  EXPECT_EQ(pin_to_core(-1).code(), Code::kInvalidArgument);
  EXPECT_EQ(pin_to_core(1 << 20).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace stagelink::cli::bench
