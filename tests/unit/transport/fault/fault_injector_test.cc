#include "transport/fault/fault_injector.h"

#include <array>
#include <vector>

#include <gtest/gtest.h>

#include "unit/transport/stream/stream_rig.h"

namespace stagelink::transport {
namespace {

EngineOptions rates(uint64_t seed, uint32_t drop, uint32_t delay, uint32_t cut, uint32_t flip) {
  EngineOptions options;
  options.fault_seed = seed;
  options.fault_drop_ppm = drop;
  options.fault_delay_ppm = delay;
  options.fault_cut_ppm = cut;
  options.fault_flip_ppm = flip;
  return options;
}

std::vector<Fault> first_decisions(uint64_t seed, size_t count) {
  FakeMetrics metrics;
  FaultInjector injector(rates(seed, 100'000, 100'000, 100'000, 100'000), metrics);
  std::vector<Fault> out;
  for (size_t i = 0; i < count; ++i) out.push_back(injector.next().fault);
  return out;
}

TEST(FaultInjectorTest, ASeedGivesTheSameFaultsAgain) {
  EXPECT_EQ(first_decisions(7, 1000), first_decisions(7, 1000));
  EXPECT_NE(first_decisions(7, 1000), first_decisions(8, 1000));
}

TEST(FaultInjectorTest, EachFaultComesAboutAsOftenAsItsRateSays) {
  FakeMetrics metrics;
  FaultInjector injector(rates(3, 10'000, 20'000, 30'000, 40'000), metrics);
  std::array<int, 5> seen{};
  constexpr int kDraws = 200'000;
  for (int i = 0; i < kDraws; ++i) ++seen[static_cast<size_t>(injector.next().fault)];
  EXPECT_NEAR(seen[static_cast<size_t>(Fault::kDrop)], kDraws / 100, 300);
  EXPECT_NEAR(seen[static_cast<size_t>(Fault::kDelay)], kDraws / 50, 300);
  EXPECT_NEAR(seen[static_cast<size_t>(Fault::kCut)], kDraws * 3 / 100, 400);
  EXPECT_NEAR(seen[static_cast<size_t>(Fault::kFlip)], kDraws / 25, 500);
  EXPECT_EQ(metrics.faults, static_cast<uint64_t>(kDraws - seen[0]));
}

TEST(FaultInjectorTest, ZeroRatesMeanNoFaultAndAMillionMeansAlways) {
  FakeMetrics metrics;
  FaultInjector never(rates(1, 0, 0, 0, 0), metrics);
  FaultInjector always(rates(1, 0, 0, 0, 1'000'000), metrics);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(never.next(1000).fault, Fault::kNone);
    EXPECT_EQ(always.next().fault, Fault::kFlip);
  }
}

TEST(FaultInjectorTest, ManySlicesSufferMoreThanOne) {
  FakeMetrics metrics;
  FaultInjector injector(rates(5, 1000, 0, 0, 0), metrics);
  int hit = 0;
  for (int i = 0; i < 1000; ++i) hit += injector.next(10'000).fault == Fault::kDrop ? 1 : 0;
  EXPECT_GT(hit, 950);
}

TEST(FaultInjectorTest, DelaysAreBounded) {
  for (uint64_t i = 0; i < 1000; ++i) {
    const Duration delay = FaultInjector::delay_of({Fault::kDelay, SplitMix64::mix(i)});
    EXPECT_GE(delay, std::chrono::milliseconds(1));
    EXPECT_LE(delay, std::chrono::milliseconds(FaultInjector::kMaxDelayMs));
  }
}

}  // namespace
}  // namespace stagelink::transport
