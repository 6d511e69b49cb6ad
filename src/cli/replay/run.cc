#include "cli/replay/run.h"

#include <iostream>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/replay/coordinator.h"
#include "cli/replay/report/plot.h"
#include "cli/replay/report/progress.h"
#include "cli/replay/report/statistics.h"
#include "cli/replay/report/table.h"
#include "cli/replay/workload/model.h"

namespace stagelink::cli::replay {
namespace {

constexpr int kExitInterrupted = 130;

int refuse(const Status& status, int exit_code) {
  std::cerr << "error: " << status.message() << "\n";
  return exit_code;
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
  const auto plan = make_plan(options);
  if (!plan.ok()) return refuse(plan.status(), kExitUsage);

  Progress progress(true);
  Coordinator coordinator(*plan);
  const auto record = coordinator.run(progress);
  if (!record.ok()) return refuse(record.status(), kExitFailed);

  const Statistics statistics = summarize(*plan, *record);
  if (output.json) {
    std::cout << to_json(*plan, *record, statistics).dump(2) << std::endl;
  } else {
    std::cout << to_table(*plan, *record, statistics) << std::flush;
  }
  if (!output.plot.empty()) {
    const Status written = write_plot(output.plot, to_svg(*plan, *record, statistics));
    if (!written.ok()) return refuse(written, kExitFailed);
  }
  if ((*record).interrupted) return kExitInterrupted;
  return succeeded(*record, statistics) ? kExitOk : kExitFailed;
}

}  // namespace stagelink::cli::replay
