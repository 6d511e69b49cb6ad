#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "metrics/stat_snapshot.h"
#include "stagelink/engine_options.h"

namespace stagelink::cli {

// An earlier look at the same engine, for rates.
struct EarlierLook {
  const metrics::StatSnapshot& snapshot;
  Duration elapsed;
};

// A table for people. Rows with labels are left out while they are 0.
std::string stat_table(const metrics::StatSnapshot& snapshot,
                       const std::optional<EarlierLook>& earlier);
// A JSON array on one line, one object an engine.
std::string stat_json(const std::vector<metrics::StatSnapshot>& snapshots);

// The upper bound of the bucket that holds the quantile; nothing without observations. For values
// above the last bound it is that bound.
std::optional<double> histogram_quantile(const metrics::StatSample& sample, double quantile);
// key="value",... as decode_stat has accepted it.
std::vector<std::pair<std::string, std::string>> split_labels(std::string_view labels);

}  // namespace stagelink::cli
