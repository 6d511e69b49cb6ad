#pragma once

#include <string>

#include "cli/replay/report/statistics.h"
#include "stagelink/status.h"

namespace stagelink::cli::replay {

// A picture of a run as SVG: left the time of each batch by its size, with that of memcpy for the
// same ranges; right the throughput over time.
std::string to_svg(const RunPlan& plan, const RunRecord& record, const Statistics& statistics);

// Whether a picture can be written there; to be asked before a long run. Errors: invalid_argument
// unless the name ends in .svg; not_found, permission for the directory.
Status check_plot_path(const std::string& path);
// Errors: no_space, permission, invalid_state (system).
Status write_plot(const std::string& path, const std::string& svg);

}  // namespace stagelink::cli::replay
