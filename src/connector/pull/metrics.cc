#include "connector/pull/metrics.h"

#include <bit>

#include <fmt/format.h>

namespace stagelink::pull {
namespace {

constexpr std::array<std::string_view, kPullPhases> kPullPhaseNames = {
    "put_space", "put_copy", "get_query", "get_alloc", "get_read", "get_total"};

// Of independent counts: a reader wants each number, not an order among them.
constexpr auto kPullUnordered = std::memory_order_relaxed;

void append_pull_heading(std::string& out, std::string_view name, std::string_view help,
                         std::string_view kind) {
  out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, kind);
}

void append_pull_outcomes(std::string& out, std::string_view name, std::string_view labels,
                          const PullMetrics::Outcomes& outcomes) {
  for (size_t reason = 0; reason < kReasonCount; ++reason) {
    const uint64_t value = outcomes[reason].load(kPullUnordered);
    if (value == 0) continue;
    out += fmt::format("{}{{{},reason=\"{}\"}} {}\n", name, labels,
                       reason_name(static_cast<Reason>(reason)), value);
  }
}

}  // namespace

void PullMetrics::count_put(Reason outcome, uint64_t bytes) noexcept {
  puts_[static_cast<size_t>(outcome)].fetch_add(1, kPullUnordered);
  put_bytes_.fetch_add(bytes, kPullUnordered);
}

void PullMetrics::count_get(Reason outcome, uint64_t bytes) noexcept {
  gets_[static_cast<size_t>(outcome)].fetch_add(1, kPullUnordered);
  get_bytes_.fetch_add(bytes, kPullUnordered);
}

void PullMetrics::observe(PullPhase phase, Clock::duration taken) noexcept {
  Histogram& histogram = phases_[static_cast<size_t>(phase)];
  const int64_t signed_ns = std::chrono::nanoseconds(taken).count();
  const uint64_t ns = signed_ns > 0 ? static_cast<uint64_t>(signed_ns) : 0;
  const uint64_t us = (ns + 999) / 1000;
  // Bucket i holds what took at most 4^i microseconds.
  const size_t bucket = us <= 1 ? 0 : static_cast<size_t>(std::bit_width(us - 1) + 1) / 2;
  histogram.buckets[bucket < kBuckets ? bucket : kBuckets - 1].fetch_add(1, kPullUnordered);
  histogram.nanoseconds.fetch_add(ns, kPullUnordered);
}

uint64_t PullMetrics::puts(Reason outcome) const noexcept {
  return puts_[static_cast<size_t>(outcome)].load(kPullUnordered);
}
uint64_t PullMetrics::gets(Reason outcome) const noexcept {
  return gets_[static_cast<size_t>(outcome)].load(kPullUnordered);
}
uint64_t PullMetrics::put_bytes() const noexcept { return put_bytes_.load(kPullUnordered); }
uint64_t PullMetrics::get_bytes() const noexcept { return get_bytes_.load(kPullUnordered); }
uint64_t PullMetrics::reconnects() const noexcept { return reconnects_.load(kPullUnordered); }

void append_sample(std::string& out, std::string_view name, std::string_view help,
                   std::string_view kind, std::string_view labels, double value) {
  append_pull_heading(out, name, help, kind);
  out += fmt::format("{}{{{}}} {}\n", name, labels, value);
}

std::string PullMetrics::text(std::string_view labels) const {
  std::string out;
  append_pull_heading(out, "stagelink_pull_puts_total", "Puts by what came of them.", "counter");
  append_pull_outcomes(out, "stagelink_pull_puts_total", labels, puts_);
  append_pull_heading(out, "stagelink_pull_gets_total",
                      "Gets by what came of them; whatever is not `ok` gave nothing.", "counter");
  append_pull_outcomes(out, "stagelink_pull_gets_total", labels, gets_);
  append_sample(out, "stagelink_pull_put_bytes_total", "Bytes of successful puts.", "counter",
                labels, static_cast<double>(put_bytes()));
  append_sample(out, "stagelink_pull_get_bytes_total", "Bytes of successful gets.", "counter",
                labels, static_cast<double>(get_bytes()));
  append_sample(out, "stagelink_pull_reconnects_total",
                "Senders that were found in another life than before.", "counter", labels,
                static_cast<double>(reconnects()));
  append_pull_heading(out, "stagelink_pull_phase_duration_seconds",
                      "How long each phase of a put or a get took.", "histogram");
  for (size_t phase = 0; phase < kPullPhases; ++phase) {
    const Histogram& histogram = phases_[phase];
    const std::string all = fmt::format("{},phase=\"{}\"", labels, kPullPhaseNames[phase]);
    uint64_t total = 0;
    for (size_t i = 0; i < kBuckets; ++i) {
      total += histogram.buckets[i].load(kPullUnordered);
      const std::string bound =
          i + 1 < kBuckets ? fmt::format("{}", static_cast<double>(uint64_t{1} << 2 * i) / 1e6)
                           : "+Inf";
      out += fmt::format("stagelink_pull_phase_duration_seconds_bucket{{{},le=\"{}\"}} {}\n", all,
                         bound, total);
    }
    out += fmt::format("stagelink_pull_phase_duration_seconds_sum{{{}}} {}\n", all,
                       static_cast<double>(histogram.nanoseconds.load(kPullUnordered)) / 1e9);
    out += fmt::format("stagelink_pull_phase_duration_seconds_count{{{}}} {}\n", all, total);
  }
  return out;
}

}  // namespace stagelink::pull
