#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "metrics/engine_metrics.h"
#include "metrics/stat_layout.h"

namespace stagelink::metrics {

// What an engine counts: the rows of its file, in order.
struct CatalogRow {
  std::string name;
  std::string labels;
  std::string help;
  StatKind kind = StatKind::kCounter;
  std::span<const double> bounds;  // Of a histogram.

  uint32_t value_count() const noexcept;
};

inline constexpr size_t kCounterCount = static_cast<size_t>(Counter::kFaultsInjected) + 1;
inline constexpr size_t kGaugeCount = static_cast<size_t>(Gauge::kRetiringRegions) + 1;
inline constexpr size_t kHistogramCount = static_cast<size_t>(Histogram::kTransferBytes) + 1;

// Counters, gauges, histograms, then stagelink_failures_total for each reason but kOk.
std::vector<CatalogRow> stat_catalog();
constexpr size_t row_of(Counter counter) noexcept { return static_cast<size_t>(counter); }
constexpr size_t row_of(Gauge gauge) noexcept { return kCounterCount + static_cast<size_t>(gauge); }
constexpr size_t row_of(Histogram histogram) noexcept {
  return kCounterCount + kGaugeCount + static_cast<size_t>(histogram);
}
// `reason` is not kOk.
constexpr size_t row_of(Reason reason) noexcept {
  return kCounterCount + kGaugeCount + kHistogramCount + static_cast<size_t>(reason) - 1;
}

}  // namespace stagelink::metrics
