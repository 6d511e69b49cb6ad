#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/process_id.h"
#include "metrics/stat_layout.h"
#include "stagelink/region.h"
#include "stagelink/result.h"

namespace stagelink::metrics {

struct StatSample {
  std::string name;
  std::string labels;
  std::string help;
  StatKind kind = StatKind::kCounter;
  uint64_t counter = 0;
  int64_t gauge = 0;
  std::vector<double> bounds;
  std::vector<uint64_t> buckets;  // One more than bounds; each of its own bucket.
  double sum = 0;
};

// The counters of one engine at one moment. Each value is whole; values of different rows may be a
// few operations apart.
struct StatSnapshot {
  ProcessId process;
  InstanceId instance;
  std::string engine_name;
  uint64_t started_unix_ms = 0;
  std::vector<StatSample> samples;

  const StatSample* find(std::string_view name) const noexcept;  // The first one; null if none.
};

// `file` is foreign input. Errors: incompatible (version); corrupt (frame) names the field.
Result<StatSnapshot> decode_stat(std::span<const std::byte> file);
// Reads the file, and never maps it: whoever shortens it meanwhile gives us an error, not a SIGBUS.
// Errors: those of decode_stat, not_found, permission, corrupt (frame) if it is no plain file.
Result<StatSnapshot> read_stat_file(const std::string& path);

// As a scrape of Prometheus expects it (text format 0.0.4). Every sample has the label `engine`.
std::string to_prometheus(const StatSnapshot& snapshot);

}  // namespace stagelink::metrics
