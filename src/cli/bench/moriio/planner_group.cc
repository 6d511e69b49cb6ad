#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "cli/bench/moriio/moriio_groups.h"
#include "cli/bench/rig/percentile.h"
#include "cli/bench/rig/process_load.h"
#include "cli/bench/suite/child_output.h"
#include "connector/block_layout/block_plan.h"

namespace stagelink::cli::bench {

namespace {

// As in bench/moriio_planner.py.
constexpr uint64_t kBlocks = 16384;
constexpr size_t kPairs = 10'000;
constexpr uint64_t kTokens = 16;
constexpr uint64_t kHeads = 8;
constexpr uint64_t kHeadSize = 128;
constexpr uint32_t kElementBytes = 2;
constexpr int kRepetitions = 100;

constexpr double kPlannerTarget = 50;
constexpr auto kScriptTimeout = std::chrono::seconds(180);  // Most of it: importing vLLM.

std::vector<int64_t> random_blocks(uint64_t seed) {
  std::vector<int64_t> ids(kBlocks - 1);
  std::iota(ids.begin(), ids.end(), int64_t{1});  // Block 0 is never moved.
  SplitMix64 random(seed);
  for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[random.below(i)]);
  ids.resize(kPairs);
  return ids;
}

// Keys and values lie apart: two ranges for each pair.
Result<block_layout::RunTemplate> kv_first() {
  const uint64_t row = kHeads * kHeadSize;
  block_layout::CacheTensor tensor;
  tensor.shape = {2, kBlocks, kTokens, kHeads, kHeadSize};
  tensor.strides = {kBlocks * kTokens * row, kTokens * row, row, kHeadSize, 1};
  tensor.element_bytes = kElementBytes;
  block_layout::LayerSpec spec;
  spec.block_size = kTokens;
  spec.num_kv_heads = kHeads;
  spec.head_size = kHeadSize;
  spec.layout = block_layout::Layout::kKvFirst;
  spec.axes = block_layout::RowAxes::kTokensHeads;
  SL_ASSIGN(const block_layout::BlockGeometry geometry, block_layout::find_geometry(tensor, spec));
  return block_layout::make_template(geometry, geometry);
}

Result<double> plan_us() {
  SL_ASSIGN(const block_layout::RunTemplate layout, kv_first());
  const std::vector<int64_t> local = random_blocks(1);
  const std::vector<int64_t> remote = random_blocks(2);
  block_layout::BlockPlan plan;
  std::vector<double> took_us;
  for (int i = 0; i < kRepetitions; ++i) {
    const double start_us = now_us();
    SL_TRY(plan.fill(layout, {local, remote}));
    took_us.push_back(now_us() - start_us);
  }
  if (plan.bytes() != kPairs * 2 * kTokens * kHeads * kHeadSize * kElementBytes) {
    return Status(Reason::kCorrupt, fmt::format("the plan has {} bytes", plan.bytes()));
  }
  return percentile(std::move(took_us), 0.5);
}

}  // namespace

Status run_planner_group(SuiteContext& context) {
  SL_ASSIGN(const double ours_us, plan_us());
  const auto script = context.script("moriio_planner.py");
  const std::string python = context.beside_sources("build/vllm-venv/bin/python", "");
  if (!script || python.empty()) {
    SuiteContext::leave_out("planner", "there is no build/vllm-venv to compare with");
    return Status();
  }
  Result<std::string> output = run_child({python, *script}, kScriptTimeout);
  if (!output.ok()) {
    SuiteContext::leave_out("planner", output.status().message());
    return Status();
  }
  // vLLM may have logged before it.
  const size_t at = output->rfind('{');
  const auto json = nlohmann::json::parse(output->substr(at == std::string::npos ? 0 : at), nullptr,
                                          /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("p50_us") || !json["p50_us"].is_number()) {
    SuiteContext::leave_out("planner", "the script printed no p50_us");
    return Status();
  }
  context.add({.name = "planner",
               .value = json["p50_us"].get<double>() / ours_us,
               .unit = "x",
               .goal = Goal::kAtLeast,
               .target = kPlannerTarget});
  return Status();
}

}  // namespace stagelink::cli::bench
