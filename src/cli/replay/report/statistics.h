#pragma once

#include <cstdint>
#include <vector>

#include "cli/replay/run_plan.h"
#include "cli/replay/run_record.h"

namespace stagelink::cli::replay {

// The figures of a run.
struct Statistics {
  uint32_t requests = 0;
  uint32_t lost_requests = 0;  // Not answered, for whatever reason.
  uint64_t blocks = 0;         // That reached decode.
  uint64_t hit_blocks = 0;     // That decode held already.
  uint64_t verified_blocks = 0;
  uint64_t wrong_blocks = 0;
  uint64_t bytes = 0;  // Of the batches that succeeded, repeated ones too.
  double wall_s = 0;
  double moving_s = 0;        // During which at least one batch was under way.
  double gb_per_s = 0;        // bytes / moving_s, in 10^9.
  double limit_gb_per_s = 0;  // Of libc memcpy, over the same batches.
  double ratio_to_limit = 0;  // Time of memcpy / time of the batches, where both were measured.
  double p50_us = 0;          // Of one batch, from submission to the end of the wait.
  double p99_us = 0;
  double max_us = 0;
  double request_p50_us = 0;  // From the request to its last checked byte, fill and check included.
  double request_p99_us = 0;
};

Statistics summarize(const RunPlan& plan, const RunRecord& record);

// The smallest value that `share` of all values do not exceed; 0 if there is none.
int64_t percentile(std::vector<int64_t> values, double share);

// Nanoseconds that are covered by at least one sample.
int64_t covered_ns(std::vector<TransferSample> samples);

}  // namespace stagelink::cli::replay
