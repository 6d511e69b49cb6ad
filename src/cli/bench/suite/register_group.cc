#include <algorithm>

#include "cli/bench/rig/percentile.h"
#include "cli/bench/rig/process_load.h"
#include "cli/bench/suite/groups.h"

namespace stagelink::cli::bench {

namespace {

constexpr size_t kViews = 10000;
constexpr size_t kRegisterRounds = 100;
constexpr std::ptrdiff_t kEdgeRounds = 10;
constexpr uint64_t kStride = 4096;
constexpr uint64_t kViewBytes = 64 << 10;  // Views overlap, as those of hosts do.

constexpr double kTargetMs = 20;
constexpr double kLinearTarget = 1.5;
constexpr double kFlatTarget = 1.2;
constexpr double kMemoryTargetMib = 4;

Result<double> register_and_deregister_us(Rig& rig, size_t views, std::vector<Region>& regions) {
  std::byte* const base = rig.local(MemoryKind::kPrivate).bytes().data();
  const double start_us = now_us();
  for (size_t i = 0; i < views; ++i) {
    SL_ASSIGN(Region region, rig.engine().register_memory(base + i * kStride, kViewBytes));
    regions.push_back(std::move(region));
  }
  for (Region& region : regions) SL_TRY(region.deregister());
  regions.clear();
  return now_us() - start_us;
}

// Of `rounds` rounds, in microseconds.
Result<std::vector<double>> run_rounds(Rig& rig, size_t views, size_t rounds) {
  std::vector<Region> regions;
  regions.reserve(views);
  std::vector<double> took_us;
  for (size_t i = 0; i < rounds; ++i) {
    SL_ASSIGN(const double us, register_and_deregister_us(rig, views, regions));
    took_us.push_back(us);
  }
  return took_us;
}

}  // namespace

Status run_register_group(SuiteContext& context) {
  SL_ASSIGN(Rig* const rig, context.rig());
  SL_TRY(run_rounds(*rig, kViews, kEdgeRounds).status());  // Tables have grown to their size.
  SL_ASSIGN(const std::vector<double> tenth_us, run_rounds(*rig, kViews / 10, kEdgeRounds));
  const uint64_t resident = resident_bytes();
  SL_ASSIGN(const std::vector<double> all_us, run_rounds(*rig, kViews, kRegisterRounds));
  const auto grown = static_cast<double>(resident_bytes()) - static_cast<double>(resident);

  const double median_us = percentile(all_us, 0.5);
  const double first_us = percentile({all_us.begin(), all_us.begin() + kEdgeRounds}, 0.5);
  const double last_us = percentile({all_us.end() - kEdgeRounds, all_us.end()}, 0.5);
  context.add({.name = "register-10k",
               .value = median_us * 1e-3,
               .unit = "ms",
               .goal = Goal::kAtMost,
               .target = kTargetMs});
  context.add({.name = "register-10k-linear",
               .value = median_us / (10 * percentile(tenth_us, 0.5)),
               .unit = "x",
               .goal = Goal::kAtMost,
               .target = kLinearTarget});
  context.add({.name = "register-10k-flat",
               .value = last_us / first_us,
               .unit = "x",
               .goal = Goal::kAtMost,
               .target = kFlatTarget});
  context.add({.name = "register-10k-memory",
               .value = std::max(grown, 0.0) / (1 << 20),
               .unit = "MiB",
               .goal = Goal::kAtMost,
               .target = kMemoryTargetMib});
  return Status();
}

}  // namespace stagelink::cli::bench
