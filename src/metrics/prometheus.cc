#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "metrics/stat_snapshot.h"
#include "stagelink/version.h"

namespace stagelink::metrics {
namespace {

std::string escape_label(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c;  // Control characters were refused when the file was read.
  }
  return out;
}

std::string escape_help(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

std::string_view kind_name(StatKind kind) noexcept {
  switch (kind) {
    case StatKind::kCounter: return "counter";
    case StatKind::kGauge: return "gauge";
    case StatKind::kHistogram: return "histogram";
  }
  return "untyped";
}

void append_family_header(std::string& out, std::string_view name, std::string_view help,
                          StatKind kind) {
  out +=
      fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, escape_help(help), name, kind_name(kind));
}

void append_histogram(std::string& out, const StatSample& sample, const std::string& labels) {
  uint64_t total = 0;
  for (size_t i = 0; i < sample.buckets.size(); ++i) {
    total += sample.buckets[i];
    const double bound =
        i < sample.bounds.size() ? sample.bounds[i] : std::numeric_limits<double>::infinity();
    out += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", sample.name, labels, number(bound), total);
  }
  out += fmt::format("{}_sum{{{}}} {}\n", sample.name, labels, number(sample.sum));
  out += fmt::format("{}_count{{{}}} {}\n", sample.name, labels, total);
}

void append_sample(std::string& out, const StatSample& sample, const std::string& engine) {
  const std::string labels = engine + (sample.labels.empty() ? "" : "," + sample.labels);
  switch (sample.kind) {
    case StatKind::kCounter:
      out += fmt::format("{}{{{}}} {}\n", sample.name, labels, sample.counter);
      break;
    case StatKind::kGauge:
      out += fmt::format("{}{{{}}} {}\n", sample.name, labels, sample.gauge);
      break;
    case StatKind::kHistogram: append_histogram(out, sample, labels); break;
  }
}

}  // namespace

std::string to_prometheus(const StatSnapshot& snapshot) {
  const std::string engine = fmt::format("engine=\"{}\"", escape_label(snapshot.engine_name));
  std::string out;
  append_family_header(out, "stagelink_engine_info", "Which engine this is; always 1.",
                       StatKind::kGauge);
  out += fmt::format("stagelink_engine_info{{{},instance_id=\"{}\",pid=\"{}\",version=\"{}\"}} 1\n",
                     engine, snapshot.instance.to_string(), snapshot.process.pid, kVersion);
  append_family_header(out, "stagelink_start_time_seconds",
                       "When the engine was created, in seconds since 1970.", StatKind::kGauge);
  out += fmt::format("stagelink_start_time_seconds{{{}}} {}.{:03}\n", engine,
                     snapshot.started_unix_ms / 1000, snapshot.started_unix_ms % 1000);
  // Samples of one family stand together: the format requires it and the catalogue keeps it.
  std::set<std::string_view> families;
  for (const StatSample& sample : snapshot.samples) {
    if (families.insert(sample.name).second) {
      append_family_header(out, sample.name, sample.help, sample.kind);
    }
    append_sample(out, sample, engine);
  }
  return out;
}

}  // namespace stagelink::metrics
