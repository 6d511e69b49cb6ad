#include "cli/stat/stat_report.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace stagelink::cli {
namespace {

using metrics::StatKind;
using metrics::StatSample;
using metrics::StatSnapshot;

std::string human_bytes(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (std::fabs(bytes) >= 1024.0 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, kUnits[unit]);
}

std::string human_seconds(double seconds) {
  if (seconds >= 1.0) return fmt::format("{:.4g} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.4g} ms", seconds * 1e3);
  return fmt::format("{:.4g} us", seconds * 1e6);
}

// The unit stands last in a name, before _total.
std::string human(std::string_view name, double value) {
  if (name.ends_with("_bytes")) return human_bytes(value);
  if (name.ends_with("_seconds")) return human_seconds(value);
  return value == std::floor(value) ? fmt::format("{:.0f}", value) : fmt::format("{:.1f}", value);
}

std::string_view short_name(std::string_view name) noexcept {
  constexpr std::string_view kPrefix = "stagelink_";
  constexpr std::string_view kSuffix = "_total";
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  if (name.ends_with(kSuffix)) name.remove_suffix(kSuffix.size());
  return name;
}

uint64_t total_count(const StatSample& sample) noexcept {
  uint64_t total = 0;
  for (const uint64_t count : sample.buckets) total += count;
  return total;
}

std::string uptime(uint64_t started_unix_ms) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto started = std::chrono::milliseconds(started_unix_ms);
  const auto up = std::chrono::duration_cast<std::chrono::seconds>(now - started);
  const auto seconds = std::max<long>(0, up.count());
  if (seconds < 60) return fmt::format("{}s", seconds);
  if (seconds < 3600) return fmt::format("{}min {}s", seconds / 60, seconds % 60);
  return fmt::format("{}h {}min", seconds / 3600, seconds / 60 % 60);
}

std::string rate_text(std::string_view name, const StatSample& now,
                      const std::optional<EarlierLook>& earlier, size_t index) {
  if (!earlier.has_value() || now.kind != StatKind::kCounter) return {};
  if (index >= earlier->snapshot.samples.size()) return {};
  const double seconds = std::chrono::duration<double>(earlier->elapsed).count();
  if (seconds <= 0) return {};
  const uint64_t delta = now.counter - earlier->snapshot.samples[index].counter;
  return human(name, static_cast<double>(delta) / seconds) + "/s";
}

std::string histogram_text(std::string_view name, const StatSample& sample) {
  const uint64_t count = total_count(sample);
  if (count == 0) return "none";
  const auto bound = [&](double quantile) {
    const auto value = histogram_quantile(sample, quantile);
    const auto below = static_cast<double>(count - sample.buckets.back());
    const bool above = below < quantile * static_cast<double>(count);
    return (above ? "> " : "<= ") + human(name, value.value_or(0));
  };
  return fmt::format("{} mean {}, p50 {}, p99 {}", count,
                     human(name, sample.sum / static_cast<double>(count)), bound(0.5), bound(0.99));
}

nlohmann::json sample_json(const StatSample& sample) {
  nlohmann::json out = {{"name", sample.name}};
  if (!sample.labels.empty()) {
    for (const auto& [key, value] : split_labels(sample.labels)) out["labels"][key] = value;
  }
  switch (sample.kind) {
    case StatKind::kCounter:
      out["kind"] = "counter";
      out["value"] = sample.counter;
      break;
    case StatKind::kGauge:
      out["kind"] = "gauge";
      out["value"] = sample.gauge;
      break;
    case StatKind::kHistogram: {
      out["kind"] = "histogram";
      out["count"] = total_count(sample);
      out["sum"] = sample.sum;
      out["bounds"] = sample.bounds;
      out["counts"] = sample.buckets;
      for (const auto& [key, quantile] : {std::pair("p50", 0.5), std::pair("p99", 0.99)}) {
        const auto value = histogram_quantile(sample, quantile);
        out[key] = value.has_value() ? nlohmann::json(*value) : nlohmann::json(nullptr);
      }
      break;
    }
  }
  return out;
}

}  // namespace

std::optional<double> histogram_quantile(const StatSample& sample, double quantile) {
  const uint64_t total = total_count(sample);
  if (total == 0 || sample.bounds.empty()) return std::nullopt;
  uint64_t seen = 0;
  for (size_t i = 0; i < sample.bounds.size(); ++i) {
    seen += sample.buckets[i];
    if (static_cast<double>(seen) >= quantile * static_cast<double>(total)) return sample.bounds[i];
  }
  return sample.bounds.back();
}

std::vector<std::pair<std::string, std::string>> split_labels(std::string_view labels) {
  std::vector<std::pair<std::string, std::string>> out;
  while (!labels.empty()) {
    const size_t equals = labels.find("=\"");
    if (equals == std::string_view::npos) return out;
    std::string key(labels.substr(0, equals));
    std::string value;
    size_t at = equals + 2;
    for (; at < labels.size() && labels[at] != '"'; ++at) {
      if (labels[at] == '\\' && at + 1 < labels.size()) ++at;
      value += labels[at];
    }
    out.emplace_back(std::move(key), std::move(value));
    labels.remove_prefix(std::min(labels.size(), at + 2));  // The quote and the comma.
  }
  return out;
}

std::string stat_table(const StatSnapshot& snapshot, const std::optional<EarlierLook>& earlier) {
  std::string out =
      fmt::format("{}  pid {}  instance {}  up {}\n", snapshot.engine_name, snapshot.process.pid,
                  snapshot.instance.to_string(), uptime(snapshot.started_unix_ms));
  for (size_t i = 0; i < snapshot.samples.size(); ++i) {
    const StatSample& sample = snapshot.samples[i];
    const std::string_view name = short_name(sample.name);
    if (sample.kind == StatKind::kHistogram) {
      out += fmt::format("  {:<28} {}\n", name, histogram_text(name, sample));
      continue;
    }
    if (!sample.labels.empty() && sample.counter == 0) continue;
    std::string label(name);
    if (!sample.labels.empty()) label += fmt::format(" {{{}}}", sample.labels);
    const double value = sample.kind == StatKind::kGauge ? static_cast<double>(sample.gauge)
                                                         : static_cast<double>(sample.counter);
    const std::string rate = rate_text(name, sample, earlier, i);
    out += rate.empty() ? fmt::format("  {:<28} {:>14}\n", label, human(name, value))
                        : fmt::format("  {:<28} {:>14} {:>16}\n", label, human(name, value), rate);
  }
  return out;
}

std::string stat_json(const std::vector<StatSnapshot>& snapshots) {
  nlohmann::json out = nlohmann::json::array();
  for (const StatSnapshot& snapshot : snapshots) {
    nlohmann::json metrics = nlohmann::json::array();
    for (const StatSample& sample : snapshot.samples) metrics.push_back(sample_json(sample));
    out.push_back({{"engine", snapshot.engine_name},
                   {"pid", snapshot.process.pid},
                   {"instance", snapshot.instance.to_string()},
                   {"started_unix_ms", snapshot.started_unix_ms},
                   {"metrics", std::move(metrics)}});
  }
  // Foreign text that is not UTF-8 must not end the program.
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace stagelink::cli
