#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "cli/replay/report/statistics.h"

namespace stagelink::cli::replay {

// Nothing was lost, nothing was wrong, nothing failed.
bool succeeded(const RunRecord& record, const Statistics& statistics);

// What a person reads at the end.
std::string to_table(const RunPlan& plan, const RunRecord& record, const Statistics& statistics);

// What a script reads; docs/replay.md lists the keys.
nlohmann::json to_json(const RunPlan& plan, const RunRecord& record, const Statistics& statistics);

}  // namespace stagelink::cli::replay
