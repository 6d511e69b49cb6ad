#include "cli/replay/run_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/replay/faults.h"

namespace stagelink::cli::replay {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

RunPlan plan_of(const ReplayOptions& options) {
  auto plan = make_plan(options);
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  return *std::move(plan);
}

std::string refusal(const ReplayOptions& options) {
  const auto plan = make_plan(options);
  EXPECT_FALSE(plan.ok());
  return std::string(plan.status().message());
}

TEST(RunPlanTest, TheDefaultIsOneLayerOfLlamaAndAPoolForTwoLargestRequests) {
  const RunPlan plan = plan_of({});
  EXPECT_EQ(plan.model, "llama-3.1-8b");
  EXPECT_EQ(plan.base.layout.layers, 1U);
  EXPECT_EQ(plan.base.layout.piece_bytes(), 32U << 10);
  EXPECT_EQ(plan.base.layout.pool_blocks, 2 * plan.size.largest);
  EXPECT_EQ(plan.in_flight, 1U);
}

TEST(RunPlanTest, ARequestThatJustFitsThePoolIsTakenAndOneBlockLessIsRefused) {
  ReplayOptions options;
  const RunPlan plan = plan_of(options);
  options.memory_bytes = plan.size.largest * plan.base.layout.block_bytes();
  EXPECT_EQ(plan_of(options).base.layout.pool_blocks, plan.size.largest);
  options.memory_bytes -= 1;
  EXPECT_THAT(refusal(options), HasSubstr("raise --memory"));
}

TEST(RunPlanTest, MoreMemoryThanTheMachineHasIsRefused) {
  ReplayOptions options;
  options.memory_bytes = uint64_t{1} << 44;
  EXPECT_THAT(refusal(options), HasSubstr("available"));
}

TEST(RunPlanTest, WrongOptionsAreNamed) {
  ReplayOptions options;
  options.decode_ranks = 0;
  EXPECT_THAT(refusal(options), HasSubstr("--decode-ranks: 0 is not from 1"));
  options = {};
  options.prefill_ranks = 65;
  EXPECT_THAT(refusal(options), HasSubstr("--prefill-ranks: 65"));
  options = {};
  options.rate = -1;
  EXPECT_THAT(refusal(options), HasSubstr("--rate"));
  options = {};
  options.transport = "tcp";
  EXPECT_THAT(refusal(options), HasSubstr("\"tcp\" is none of"));
  options = {};
  options.dtype = "fp7";
  EXPECT_THAT(refusal(options), HasSubstr("fp7"));
}

TEST(RunPlanTest, ATransportIsAListOfTheEngine) {
  ReplayOptions options;
  EXPECT_THAT(plan_of(options).base.transports, ElementsAreArray(EngineOptions().transports));
  options.transport = "cma";
  EXPECT_THAT(plan_of(options).base.transports, ElementsAre("cma"));
  options.transport = "unix";
  EXPECT_THAT(plan_of(options).base.transports, ElementsAre("unix"));
}

TEST(RunPlanTest, EveryPairOfRanksGetsRequests) {
  ReplayOptions options;
  options.prefill_ranks = 2;
  options.decode_ranks = 2;
  const RunPlan plan = plan_of(options);
  std::set<std::pair<uint32_t, uint32_t>> pairs;
  for (uint32_t request = 0; request < 8; ++request) {
    pairs.insert({plan.prefill_rank_of(request), plan.decode_rank_of(request)});
  }
  EXPECT_EQ(pairs.size(), 4U);
}

TEST(RunPlanTest, FaultsAreOffWithoutASeed) {
  EXPECT_EQ(plan_of({}).base.fault_flip_ppm, 0U);
  ReplayOptions options;
  options.fault_seed = 3;
  const RunPlan plan = plan_of(options);
  EXPECT_EQ(plan.base.fault_seed, 3U);
  EXPECT_GT(plan.base.fault_flip_ppm, 0U);
  EXPECT_GT(plan.base.fault_drop_ppm, 0U);
  EXPECT_GT(plan.base.fault_cut_ppm, 0U);
}

TEST(FaultsTest, TheLargestRequestFailsOnceInFiveAttempts) {
  RankConfig config;
  WorkloadSize size;
  size.distinct_blocks = 160'000;
  size.largest = 8000;
  set_faults(1, size, config);
  const double slices = 8000.0 * 2 * 32 / 256;  // Two pieces of 32 KiB a block.
  EXPECT_LE(slices * (config.fault_drop_ppm + config.fault_cut_ppm) / 1e6, 0.2);
  EXPECT_GE(slices * (config.fault_drop_ppm + config.fault_cut_ppm) / 1e6, 0.1);
}

TEST(FaultsTest, ATinyWorkloadSeesFaultsToo) {
  RankConfig config;
  WorkloadSize size;
  size.distinct_blocks = 100;
  size.largest = 20;
  set_faults(1, size, config);
  EXPECT_GE(config.fault_flip_ppm, 100'000U);
  EXPECT_LE(config.fault_flip_ppm, 1'000'000U);
}

TEST(RankConfigTest, ComesBackFromItsJson) {
  ReplayOptions options;
  options.fault_seed = 5;
  options.mode = Mode::kWrite;
  options.verify = Verify::kSample;
  options.checksum = false;
  RankConfig config = plan_of(options).base;
  config.role = Role::kDecode;
  config.rank = 3;
  const auto back = rank_config_from(nlohmann::json::parse(to_json(config).dump()));
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(to_json(*back), to_json(config));
}

TEST(RankConfigTest, AMissingKeyIsNamed) {
  auto json = to_json(RankConfig{});
  json.erase("retries");
  const auto back = rank_config_from(json);
  ASSERT_FALSE(back.ok());
  EXPECT_THAT(std::string(back.status().message()), HasSubstr("retries"));
}

TEST(RankConfigTest, OneSideInitiates) {
  RankConfig config;
  config.role = Role::kDecode;
  config.mode = Mode::kRead;
  EXPECT_TRUE(config.initiates());
  config.mode = Mode::kWrite;
  EXPECT_FALSE(config.initiates());
  config.role = Role::kPrefill;
  EXPECT_TRUE(config.initiates());
}

}  // namespace
}  // namespace stagelink::cli::replay
