#include "store/store_metrics.h"

#include <bit>

#include <fmt/format.h>

namespace stagelink::store {
namespace {

constexpr std::array<std::string_view, kStoreCalls> kCallNames = {"create", "seal",  "get",
                                                                  "exists", "erase", "expire"};

// Of independent counts: a reader of the text wants each number, not an order among them.
constexpr auto kRelaxed = std::memory_order_relaxed;

void append_head(std::string& out, std::string_view name, std::string_view help,
                 std::string_view kind) {
  out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, kind);
}

}  // namespace

void StoreMetrics::count(StoreCall call, Reason outcome) noexcept {
  outcomes_[static_cast<size_t>(call)][static_cast<size_t>(outcome)].fetch_add(1, kRelaxed);
}

void StoreMetrics::count_put_bytes(uint64_t bytes) noexcept {
  put_bytes_.fetch_add(bytes, kRelaxed);
}

void StoreMetrics::count_got_bytes(uint64_t bytes) noexcept {
  got_bytes_.fetch_add(bytes, kRelaxed);
}

void StoreMetrics::observe(StoreCall call, Clock::duration taken) noexcept {
  Histogram& histogram = call == StoreCall::kGet ? get_ : create_;
  const int64_t signed_ns = std::chrono::nanoseconds(taken).count();
  const uint64_t ns = signed_ns > 0 ? static_cast<uint64_t>(signed_ns) : 0;
  // Bucket i holds what took at most 2^i microseconds.
  const uint64_t us = (ns + 999) / 1000;
  const size_t bucket = us <= 1 ? 0 : static_cast<size_t>(std::bit_width(us - 1));
  histogram.buckets[bucket < kBuckets ? bucket : kBuckets - 1].fetch_add(1, kRelaxed);
  histogram.nanoseconds.fetch_add(ns, kRelaxed);
}

std::string StoreMetrics::text(std::string_view labels) const {
  std::string out;
  append_head(out, "stagelink_store_calls_total", "Calls by what came of them.", "counter");
  for (size_t call = 0; call < kStoreCalls; ++call) {
    for (size_t reason = 0; reason < kReasonCount; ++reason) {
      const uint64_t value = outcomes_[call][reason].load(kRelaxed);
      if (value == 0) continue;
      out += fmt::format("stagelink_store_calls_total{{{},call=\"{}\",reason=\"{}\"}} {}\n", labels,
                         kCallNames[call], reason_name(static_cast<Reason>(reason)), value);
    }
  }
  append_head(out, "stagelink_store_put_bytes_total", "Bytes of sealed objects.", "counter");
  out +=
      fmt::format("stagelink_store_put_bytes_total{{{}}} {}\n", labels, put_bytes_.load(kRelaxed));
  append_head(out, "stagelink_store_get_bytes_total", "Bytes of objects that were found.",
              "counter");
  out +=
      fmt::format("stagelink_store_get_bytes_total{{{}}} {}\n", labels, got_bytes_.load(kRelaxed));
  append_head(out, "stagelink_store_call_duration_seconds",
              "How long successful calls took, waiting included.", "histogram");
  for (const StoreCall call : {StoreCall::kCreate, StoreCall::kGet}) {
    const Histogram& histogram = call == StoreCall::kGet ? get_ : create_;
    const std::string all =
        fmt::format("{},call=\"{}\"", labels, kCallNames[static_cast<size_t>(call)]);
    uint64_t total = 0;
    for (size_t i = 0; i < kBuckets; ++i) {
      total += histogram.buckets[i].load(kRelaxed);
      const std::string bound = i + 1 < kBuckets
                                    ? fmt::format("{}", static_cast<double>(uint64_t{1} << i) / 1e6)
                                    : "+Inf";
      out += fmt::format("stagelink_store_call_duration_seconds_bucket{{{},le=\"{}\"}} {}\n", all,
                         bound, total);
    }
    out += fmt::format("stagelink_store_call_duration_seconds_sum{{{}}} {}\n", all,
                       static_cast<double>(histogram.nanoseconds.load(kRelaxed)) / 1e9);
    out += fmt::format("stagelink_store_call_duration_seconds_count{{{}}} {}\n", all, total);
  }
  return out;
}

}  // namespace stagelink::store
