#pragma once

#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "metrics/stat_snapshot.h"

namespace stagelink::cli {

struct LiveEngines {
  std::vector<metrics::StatSnapshot> engines;  // By pid, then by instance.
  std::vector<std::string> problems;  // One line for each counters file that was unreadable.
};

// The engines whose counters lie in `dirs` and whose process lives; of one process if `pid` is set.
// Changes nothing there.
LiveEngines find_engines(const std::vector<std::string>& dirs, std::optional<pid_t> pid);

}  // namespace stagelink::cli
