#include "cli/replay/run.h"

#include <iostream>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/replay/coordinator.h"
#include "cli/replay/halves/half_run.h"
#include "cli/replay/report/plot.h"
#include "cli/replay/report/progress.h"
#include "cli/replay/report/statistics.h"
#include "cli/replay/report/table.h"
#include "cli/replay/workload/model.h"

namespace stagelink::cli::replay {
namespace {

constexpr int kExitInterrupted = 130;
constexpr auto kReportTimeout = std::chrono::seconds(10);

int refuse(const Status& status, int exit_code) {
  std::cerr << "error: " << status.message() << "\n";
  return exit_code;
}

// Of a run that could not begin, or whose other half is lost.
int give_up(const Status& status) {
  return refuse(status, status.code() == Code::kCancelled ? kExitInterrupted : kExitFailed);
}

void print(const RunPlan& plan, const RunRecord& record, const Statistics& statistics, bool json) {
  if (json) {
    std::cout << to_json(plan, record, statistics).dump(2) << std::endl;
  } else {
    std::cout << to_table(plan, record, statistics) << std::flush;
  }
}

int run_prefill(const RunPlan& plan, const RunOutput& output) {
  const auto report = run_prefill_half(plan);
  if (!report.ok()) return give_up(report.status());
  print(plan, (*report).record, (*report).statistics, output.json);
  return (*report).exit_code;
}

int exit_code_of(const RunRecord& record, const Statistics& statistics) {
  if (record.interrupted) return kExitInterrupted;
  return succeeded(record, statistics) ? kExitOk : kExitFailed;
}

}  // namespace

std::string model_names() {
  std::string names;
  for (const ModelGeometry& model : known_models()) {
    if (!names.empty()) names += ", ";
    names += model.name;
  }
  return names;
}

int run(const ReplayOptions& options, const RunOutput& output) {
  if (!output.plot.empty()) {
    if (const Status good = check_plot_path(output.plot); !good.ok()) {
      return refuse(good, kExitUsage);
    }
  }
  if (options.half == Half::kPrefill && !output.plot.empty()) {
    return refuse(Status(Reason::kInvalidArgument, "--plot: the decode half draws the picture"),
                  kExitUsage);
  }
  const auto plan = make_plan(options);
  if (!plan.ok()) return refuse(plan.status(), kExitUsage);

  if (options.half == Half::kPrefill) return run_prefill(*plan, output);
  auto prefill = prefill_side(*plan);
  if (!prefill.ok()) return give_up(prefill.status());

  Progress progress(true);
  Coordinator coordinator(*plan, *(*prefill).ranks);
  const auto record = coordinator.run(progress);
  if (!record.ok()) return refuse(record.status(), kExitFailed);

  const Statistics statistics = summarize(*plan, *record);
  const int exit_code = exit_code_of(*record, statistics);
  if ((*prefill).remote != nullptr) {
    (*prefill).remote->finish(to_json(*plan, *record, statistics), exit_code,
                              Deadline::in(kReportTimeout));
  }
  print(*plan, *record, statistics, output.json);
  if (!output.plot.empty()) {
    const Status written = write_plot(output.plot, to_svg(*plan, *record, statistics));
    if (!written.ok()) return refuse(written, kExitFailed);
  }
  return exit_code;
}

}  // namespace stagelink::cli::replay
