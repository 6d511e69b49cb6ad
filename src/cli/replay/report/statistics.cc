#include "cli/replay/report/statistics.h"

#include <algorithm>
#include <cmath>

namespace stagelink::cli::replay {
namespace {

constexpr double kNsPerSecond = 1e9;
constexpr double kNsPerUs = 1e3;

void add_requests(const RunRecord& record, Statistics& statistics) {
  std::vector<int64_t> totals;
  for (const RequestRecord& request : record.requests) {
    if (request.state != RequestRecord::State::kDone) {
      ++statistics.lost_requests;
      continue;
    }
    statistics.blocks += request.blocks;
    statistics.hit_blocks += request.hit_blocks;
    statistics.verified_blocks += request.verified_blocks;
    statistics.wrong_blocks += request.wrong_blocks;
    totals.push_back(request.total_ns);
  }
  statistics.request_p50_us = static_cast<double>(percentile(totals, 0.50)) / kNsPerUs;
  statistics.request_p99_us = static_cast<double>(percentile(totals, 0.99)) / kNsPerUs;
}

void add_transfers(const RunRecord& record, Statistics& statistics) {
  std::vector<int64_t> spans;
  for (const TransferSample& sample : record.transfers) {
    statistics.bytes += sample.bytes;
    spans.push_back(sample.ns);
  }
  statistics.p50_us = static_cast<double>(percentile(spans, 0.50)) / kNsPerUs;
  statistics.p99_us = static_cast<double>(percentile(spans, 0.99)) / kNsPerUs;
  statistics.max_us = static_cast<double>(percentile(spans, 1)) / kNsPerUs;
  const int64_t covered = covered_ns(record.transfers);
  statistics.moving_s = static_cast<double>(covered) / kNsPerSecond;
  if (covered > 0) {
    statistics.gb_per_s = static_cast<double>(statistics.bytes) / static_cast<double>(covered);
  }
}

// Only requests that were moved in one batch: the limit was measured for that very batch.
void add_limit(const RunRecord& record, Statistics& statistics) {
  std::vector<uint32_t> batches(record.requests.size(), 0);
  for (const TransferSample& sample : record.transfers) ++batches[sample.request];
  int64_t ours = 0;
  int64_t limit = 0;
  uint64_t bytes = 0;
  for (const TransferSample& sample : record.transfers) {
    const RequestRecord& request = record.requests[sample.request];
    if (batches[sample.request] != 1 || request.limit_ns == 0) continue;
    ours += sample.ns;
    limit += request.limit_ns;
    bytes += sample.bytes;
  }
  if (ours == 0 || limit == 0) return;
  statistics.limit_gb_per_s = static_cast<double>(bytes) / static_cast<double>(limit);
  statistics.ratio_to_limit = static_cast<double>(limit) / static_cast<double>(ours);
}

}  // namespace

Statistics summarize(const RunPlan& plan, const RunRecord& record) {
  Statistics statistics;
  statistics.requests = static_cast<uint32_t>(plan.workload.requests.size());
  statistics.wall_s = std::chrono::duration<double>(record.wall).count();
  add_requests(record, statistics);
  add_transfers(record, statistics);
  add_limit(record, statistics);
  return statistics;
}

int64_t percentile(std::vector<int64_t> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const double rank = std::ceil(share * static_cast<double>(values.size()));
  const auto index = static_cast<size_t>(std::max(rank, 1.0)) - 1;
  return values[std::min(index, values.size() - 1)];
}

int64_t covered_ns(std::vector<TransferSample> samples) {
  std::ranges::sort(samples, {}, &TransferSample::start_ns);
  int64_t covered = 0;
  int64_t until = INT64_MIN;
  for (const TransferSample& sample : samples) {
    const int64_t end = sample.start_ns + sample.ns;
    if (end <= until) continue;
    covered += end - std::max(until, sample.start_ns);
    until = end;
  }
  return covered;
}

}  // namespace stagelink::cli::replay
