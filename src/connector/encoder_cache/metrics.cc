#include "connector/encoder_cache/metrics.h"

#include <fmt/format.h>

#include "connector/pull/metrics.h"

namespace stagelink::encoder_cache {
namespace {

void add(CacheMetrics::Outcomes& outcomes, Reason outcome) noexcept {
  outcomes[static_cast<size_t>(outcome)].fetch_add(1);
}
uint64_t look(const CacheMetrics::Outcomes& outcomes, Reason outcome) noexcept {
  return outcomes[static_cast<size_t>(outcome)].load();
}

void append_cache_outcomes(std::string& out, std::string_view name, std::string_view help,
                           std::string_view labels, const CacheMetrics::Outcomes& outcomes) {
  out += fmt::format("# HELP {} {}\n# TYPE {} counter\n", name, help, name);
  for (size_t reason = 0; reason < kReasonCount; ++reason) {
    const uint64_t value = outcomes[reason].load();
    if (value == 0) continue;
    out += fmt::format("{}{{{},reason=\"{}\"}} {}\n", name, labels,
                       reason_name(static_cast<Reason>(reason)), value);
  }
}

}  // namespace

void CacheMetrics::count_save(Reason outcome, uint64_t bytes) noexcept {
  add(saves_, outcome);
  if (outcome == Reason::kOk) saved_bytes_.fetch_add(bytes);
}
void CacheMetrics::count_load(Reason outcome, uint64_t bytes) noexcept {
  add(loads_, outcome);
  if (outcome == Reason::kOk) loaded_bytes_.fetch_add(bytes);
}
void CacheMetrics::count_peer_pull(Reason outcome) noexcept { add(peer_pulls_, outcome); }
void CacheMetrics::count_push(Reason outcome) noexcept { add(pushes_, outcome); }
void CacheMetrics::count_evictions(uint64_t count) noexcept { evictions_.fetch_add(count); }
void CacheMetrics::count_joined(uint64_t count) noexcept { joined_.fetch_add(count); }
void CacheMetrics::count_fallback() noexcept { fallbacks_.fetch_add(1); }

uint64_t CacheMetrics::saves(Reason outcome) const noexcept { return look(saves_, outcome); }
uint64_t CacheMetrics::loads(Reason outcome) const noexcept { return look(loads_, outcome); }
uint64_t CacheMetrics::peer_pulls(Reason outcome) const noexcept {
  return look(peer_pulls_, outcome);
}
uint64_t CacheMetrics::pushes(Reason outcome) const noexcept { return look(pushes_, outcome); }

std::string CacheMetrics::text(std::string_view labels) const {
  std::string out;
  append_cache_outcomes(out, "stagelink_ec_saves_total", "Embeddings saved, by what came of it.",
                        labels, saves_);
  append_cache_outcomes(out, "stagelink_ec_loads_total",
                        "Embeddings asked of producers, by what came of it.", labels, loads_);
  append_cache_outcomes(out, "stagelink_ec_peer_pulls_total",
                        "Pulls of peers that know no leases, by what came of it.", labels,
                        peer_pulls_);
  append_cache_outcomes(out, "stagelink_ec_pushes_total", "Transfers, by what came of them.",
                        labels, pushes_);
  const auto counter = [&](std::string_view name, std::string_view help,
                           const std::atomic<uint64_t>& value) {
    pull::append_sample(out, name, help, "counter", labels, static_cast<double>(value.load()));
  };
  counter("stagelink_ec_saved_bytes_total", "Bytes of embeddings saved.", saved_bytes_);
  counter("stagelink_ec_loaded_bytes_total", "Bytes of embeddings loaded.", loaded_bytes_);
  counter("stagelink_ec_evictions_total", "Embeddings that made room for others.", evictions_);
  counter("stagelink_ec_joined_loads_total", "Loads of a hash that was on its way already.",
          joined_);
  counter("stagelink_ec_fallback_total",
          "Embeddings that were encoded here because they could not be had.", fallbacks_);
  return out;
}

}  // namespace stagelink::encoder_cache
