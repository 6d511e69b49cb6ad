#include "cli/replay/run_plan.h"

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/replay/faults.h"
#include "unit/cli/replay/temp_file.h"

namespace stagelink::cli::replay {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::Not;

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
  options.transport = "ucx";
  EXPECT_THAT(refusal(options), HasSubstr("\"ucx\" is none of"));
  options = {};
  options.dtype = "fp7";
  EXPECT_THAT(refusal(options), HasSubstr("fp7"));
}

TEST(RunPlanTest, BothSidesOfWhatTheEngineTakes) {
  const auto takes = [](Duration timeout, Duration start, uint64_t seed) {
    ReplayOptions options;
    options.timeout = timeout;
    options.ready_timeout = start;
    options.fault_seed = seed;
    const auto plan = make_plan(options);
    return plan.ok() ? "" : std::string(plan.status().message());
  };
  constexpr auto kMs = std::chrono::milliseconds(1);
  constexpr auto kYear = std::chrono::hours(8760);
  constexpr Duration kNs{1};
  constexpr uint64_t kSeed = (uint64_t{1} << 63) - 1 - 64;
  EXPECT_EQ(takes(kMs, kYear, kSeed), "");
  EXPECT_EQ(takes(kYear, kMs, 1), "");
  EXPECT_THAT(takes(kMs - kNs, kMs, 0),
              HasSubstr("--timeout: 999999ns is not a duration from 1ms"));
  EXPECT_THAT(takes(kYear + kNs, kMs, 0), HasSubstr("--timeout: "));
  EXPECT_THAT(takes(kMs, kMs - kNs, 0), HasSubstr("--ready-timeout: 999999ns"));
  EXPECT_THAT(takes(kMs, kYear + kNs, 0), HasSubstr("--ready-timeout: "));
  EXPECT_THAT(takes(kMs, kMs, kSeed + 1), HasSubstr("--fault-seed: 9223372036854775744 is not"));
}

TEST(RunPlanTest, AWrongOptionOfTheEnvironmentIsRefusedBeforeTheStart) {
  ::setenv("STAGELINK_COPY_THREADS", "many", 1);
  const std::string refused = refusal({});
  ::unsetenv("STAGELINK_COPY_THREADS");
  EXPECT_THAT(refused, HasSubstr("STAGELINK_COPY_THREADS: copy_threads: `many`"));
}

TEST(RunPlanTest, ARequestOfAsManyPiecesAsABatchTakesIsTakenAndMoreAreRefused) {
  const TempDir dir;
  const auto outcome = [&dir](uint32_t tokens) {
    std::string ids = "0";
    for (uint32_t id = 1; id * 512 < tokens; ++id) ids += "," + std::to_string(id);
    ReplayOptions options;
    options.trace =
        dir.write("trace.jsonl", "{\"timestamp\":0,\"input_length\":" + std::to_string(tokens) +
                                     ",\"output_length\":1,\"hash_ids\":[" + ids + "]}");
    options.model = "llama-3.2-1b";  // 32 pieces a block.
    options.scale = "1";
    options.block_tokens = 1;
    options.memory_bytes = tokens * (uint64_t{32} << 10);
    const auto plan = make_plan(options);
    return plan.ok() ? "" : std::string(plan.status().message());
  };
  // There may be too little memory for it, but that is another matter.
  EXPECT_THAT(outcome(32768), Not(HasSubstr("a batch takes")));
  EXPECT_THAT(outcome(32769), HasSubstr("has 1048608 pieces, a batch takes at most 1048576"));
}

TEST(RunPlanTest, TheTimeToStartGrowsWithTheMemory) {
  ReplayOptions options;
  const auto needed = static_cast<int>(plan_of(options).memory_needed() >> 30);
  EXPECT_EQ(plan_of(options).ready_timeout, std::chrono::seconds(60 + 10 * needed));
  options.memory_bytes = 300 << 20;  // One prefill pool, and three of a decode rank: 1.2 GiB.
  EXPECT_EQ(plan_of(options).ready_timeout, std::chrono::seconds(70));
  options.ready_timeout = std::chrono::seconds(7);
  EXPECT_EQ(plan_of(options).ready_timeout, std::chrono::seconds(7));
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
