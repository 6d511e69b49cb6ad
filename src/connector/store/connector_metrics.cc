#include "connector/store/connector_metrics.h"

#include <bit>

#include <fmt/format.h>

namespace stagelink::store_connector {
namespace {

constexpr std::array<std::string_view, kPhases> kPhaseNames = {
    "put_turn", "put_space", "put_write", "put_seal", "get_wait", "get_decode", "get_delete"};

// Of independent counts: a reader wants each number, not an order among them.
constexpr auto kUnordered = std::memory_order_relaxed;

void append_heading(std::string& out, std::string_view name, std::string_view help,
                    std::string_view kind) {
  out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, kind);
}

}  // namespace

void ConnectorMetrics::count_put(Reason outcome, uint64_t bytes) noexcept {
  puts_[static_cast<size_t>(outcome)].fetch_add(1, kUnordered);
  put_bytes_.fetch_add(bytes, kUnordered);
}

void ConnectorMetrics::count_get(Reason outcome, uint64_t bytes) noexcept {
  gets_[static_cast<size_t>(outcome)].fetch_add(1, kUnordered);
  get_bytes_.fetch_add(bytes, kUnordered);
}

void ConnectorMetrics::observe(Phase phase, Clock::duration taken) noexcept {
  Histogram& histogram = phases_[static_cast<size_t>(phase)];
  const int64_t signed_ns = std::chrono::nanoseconds(taken).count();
  const uint64_t ns = signed_ns > 0 ? static_cast<uint64_t>(signed_ns) : 0;
  const uint64_t us = (ns + 999) / 1000;
  // Bucket i holds what took at most 4^i microseconds.
  const size_t bucket = us <= 1 ? 0 : static_cast<size_t>(std::bit_width(us - 1) + 1) / 2;
  histogram.buckets[bucket < kBuckets ? bucket : kBuckets - 1].fetch_add(1, kUnordered);
  histogram.nanoseconds.fetch_add(ns, kUnordered);
}

uint64_t ConnectorMetrics::puts(Reason outcome) const noexcept {
  return puts_[static_cast<size_t>(outcome)].load(kUnordered);
}
uint64_t ConnectorMetrics::gets(Reason outcome) const noexcept {
  return gets_[static_cast<size_t>(outcome)].load(kUnordered);
}
uint64_t ConnectorMetrics::put_bytes() const noexcept { return put_bytes_.load(kUnordered); }
uint64_t ConnectorMetrics::get_bytes() const noexcept { return get_bytes_.load(kUnordered); }

void ConnectorMetrics::append_outcomes(std::string& out, std::string_view name,
                                       std::string_view labels, const Outcomes& outcomes) const {
  for (size_t reason = 0; reason < kReasonCount; ++reason) {
    const uint64_t value = outcomes[reason].load(kUnordered);
    if (value == 0) continue;
    out += fmt::format("{}{{{},reason=\"{}\"}} {}\n", name, labels,
                       reason_name(static_cast<Reason>(reason)), value);
  }
}

std::string ConnectorMetrics::text(std::string_view labels) const {
  std::string out;
  append_heading(out, "stagelink_connector_puts_total", "Puts by what came of them.", "counter");
  append_outcomes(out, "stagelink_connector_puts_total", labels, puts_);
  append_heading(out, "stagelink_connector_gets_total",
                 "Gets by what came of them; whatever is not `ok` gave nothing.", "counter");
  append_outcomes(out, "stagelink_connector_gets_total", labels, gets_);
  append_heading(out, "stagelink_connector_put_bytes_total", "Bytes of successful puts.",
                 "counter");
  out += fmt::format("stagelink_connector_put_bytes_total{{{}}} {}\n", labels, put_bytes());
  append_heading(out, "stagelink_connector_get_bytes_total", "Bytes of successful gets.",
                 "counter");
  out += fmt::format("stagelink_connector_get_bytes_total{{{}}} {}\n", labels, get_bytes());
  append_heading(out, "stagelink_connector_phase_duration_seconds",
                 "How long each phase of a put or a get took.", "histogram");
  for (size_t phase = 0; phase < kPhases; ++phase) {
    const Histogram& histogram = phases_[phase];
    const std::string all = fmt::format("{},phase=\"{}\"", labels, kPhaseNames[phase]);
    uint64_t total = 0;
    for (size_t i = 0; i < kBuckets; ++i) {
      total += histogram.buckets[i].load(kUnordered);
      const std::string bound =
          i + 1 < kBuckets ? fmt::format("{}", static_cast<double>(uint64_t{1} << 2 * i) / 1e6)
                           : "+Inf";
      out += fmt::format("stagelink_connector_phase_duration_seconds_bucket{{{},le=\"{}\"}} {}\n",
                         all, bound, total);
    }
    out += fmt::format("stagelink_connector_phase_duration_seconds_sum{{{}}} {}\n", all,
                       static_cast<double>(histogram.nanoseconds.load(kUnordered)) / 1e9);
    out += fmt::format("stagelink_connector_phase_duration_seconds_count{{{}}} {}\n", all, total);
  }
  return out;
}

}  // namespace stagelink::store_connector
