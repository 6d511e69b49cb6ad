#include "cli/replay/workload/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/cli/replay/temp_file.h"

namespace stagelink::cli::replay {
namespace {

using ::testing::ElementsAre;

TEST(WorkloadTest, APromptIsCutIntoBlocksOfEachId) {
  const uint64_t ids[] = {4, 8};
  EXPECT_THAT(block_keys(ids, 512 + 200, 128),
              ElementsAre(BlockKey{4, 0}, BlockKey{4, 128}, BlockKey{4, 256}, BlockKey{4, 384},
                          BlockKey{8, 0}, BlockKey{8, 128}));
}

TEST(WorkloadTest, ABlockThatIsPartlyFilledCounts) {
  const uint64_t ids[] = {4};
  EXPECT_EQ(block_keys(ids, 16, 16).size(), 1U);
  EXPECT_EQ(block_keys(ids, 17, 16).size(), 2U);
}

TEST(WorkloadTest, TheBuiltInOneIsTheSameForASeedAndConsistent) {
  const Workload first = built_in_workload(1);
  const Workload again = built_in_workload(1);
  ASSERT_EQ(first.requests.size(), again.requests.size());
  for (size_t i = 0; i < first.requests.size(); ++i) {
    EXPECT_EQ(first.requests[i].hash_ids, again.requests[i].hash_ids);
    const uint32_t tokens = first.requests[i].input_tokens;
    EXPECT_EQ(first.requests[i].hash_ids.size(), (tokens + kTokensPerId - 1) / kTokensPerId);
  }
  EXPECT_NE(built_in_workload(2).requests[0].input_tokens, first.requests[0].input_tokens);
}

TEST(WorkloadTest, TheBuiltInOneSharesPrefixes) {
  const WorkloadSize size = measure(built_in_workload(1), 16);
  EXPECT_LT(size.distinct_blocks, size.blocks);
}

TEST(WorkloadTest, MeasureNamesTheLargestRequest) {
  Workload workload{"test", {}};
  workload.requests.push_back({0, 512, 0, {1}});
  workload.requests.push_back({0, 1024, 0, {1, 2}});
  workload.requests.push_back({0, 512, 0, {2}});
  const WorkloadSize size = measure(workload, 256);
  EXPECT_EQ(size.blocks, 8U);
  EXPECT_EQ(size.distinct_blocks, 4U);
  EXPECT_EQ(size.largest, 4U);
  EXPECT_EQ(size.largest_request, 1U);
}

TEST(WorkloadTest, ATraceIsReadUpToTheLimit) {
  const TempDir dir;
  const std::string line = R"({"timestamp":0,"input_length":1,"output_length":0,"hash_ids":[0]})"
                           "\n";
  const std::string path = dir.write("t.jsonl", line + line + line);
  EXPECT_EQ((*load_trace(path, 2)).requests.size(), 2U);
  EXPECT_EQ((*load_trace(path, 0)).requests.size(), 3U);
}

TEST(WorkloadTest, AnEmptyTraceIsRefused) {
  const TempDir dir;
  EXPECT_EQ(load_trace(dir.write("t.jsonl", "\n"), 0).status().reason(), Reason::kNotFound);
}

}  // namespace
}  // namespace stagelink::cli::replay
