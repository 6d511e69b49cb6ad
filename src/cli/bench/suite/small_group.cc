#include <array>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/bench/rig/percentile.h"
#include "cli/bench/rig/process_load.h"
#include "cli/bench/suite/child_output.h"
#include "cli/bench/suite/groups.h"

namespace stagelink::cli::bench {

namespace {

constexpr size_t kReads = 20000;
constexpr double kTargetUs = 1;
constexpr double kPythonTargetUs = 5;
constexpr double kListsOverArraysTarget = 5;
constexpr auto kPythonTimeout = std::chrono::seconds(60);

Result<double> read_8_bytes_us(Session& session) {
  const Picks picks = make_picks({.block_bytes = 8, .blocks = 4096}, 1);
  std::vector<double> took_us(kReads);
  for (size_t i = 0; i < kReads; ++i) {
    const size_t at = i % picks.sizes.size();
    const RangeList one{.local_offsets = std::span(&picks.local[at], 1),
                        .remote_offsets = std::span(&picks.remote[at], 1),
                        .sizes = std::span(&picks.sizes[at], 1),
                        .local_regions = {},
                        .remote_regions = {}};
    const double start_us = now_us();
    SL_ASSIGN(Transfer transfer, session.read(one));
    SL_TRY(transfer.wait());
    took_us[i] = now_us() - start_us;
  }
  return percentile(std::move(took_us), 0.5);
}

// Adds a row for a number that the script has printed.
void add_python_row(SuiteContext& context, const nlohmann::json& printed, const char* key,
                    CaseResult row) {
  if (!printed.is_object() || !printed.contains(key) || !printed[key].is_number()) {
    return SuiteContext::leave_out(row.name, fmt::format("the script printed no {}", key));
  }
  row.value = printed[key].get<double>();
  context.add(std::move(row));
}

void measure_python(SuiteContext& context) {
  const std::optional<std::string> script = context.script("python_latency.py");
  if (!script) return SuiteContext::leave_out("shm-8b-py", "bench/python_latency.py not found");
  const std::string& chosen = context.options().python;
  const std::string python =
      chosen.empty() ? context.beside_sources(".venv/bin/python", "python3") : chosen;
  const Result<std::string> output = run_child({python, *script}, kPythonTimeout);
  if (!output.ok()) return SuiteContext::leave_out("shm-8b-py", output.status().message());
  const auto json = nlohmann::json::parse(*output, nullptr, false);
  add_python_row(
      context, json, "p50_us",
      {.name = "shm-8b-py", .unit = "us", .goal = Goal::kAtMost, .target = kPythonTargetUs});
  add_python_row(
      context, json, "lists_over_arrays",
      {.name = "submit-py", .unit = "x", .goal = Goal::kAtLeast, .target = kListsOverArraysTarget});
}

}  // namespace

Status run_small_group(SuiteContext& context) {
  SL_ASSIGN(Rig* const rig, context.rig());
  SL_TRY(rig->prepare(Op::kRead, MemoryKind::kPrivate));
  SL_ASSIGN(Session* const session, rig->session(MemoryKind::kPrivate));
  SL_ASSIGN(const double p50_us, read_8_bytes_us(*session));
  SL_TRY(rig->verify(Op::kRead, MemoryKind::kPrivate, {.block_bytes = 8, .blocks = 4096}));
  context.add({.name = "shm-8b",
               .value = p50_us,
               .unit = "us",
               .goal = Goal::kAtMost,
               .target = kTargetUs});
  measure_python(context);
  return Status();
}

}  // namespace stagelink::cli::bench
