#include "cli/replay/report/table.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace stagelink::cli::replay {
namespace {

constexpr double kGiB = 1 << 30;

std::string rows(const std::vector<std::pair<std::string, std::string>>& lines) {
  std::string text;
  for (const auto& [name, value] : lines) text += fmt::format("  {:<14}{}\n", name, value);
  return text;
}

std::string us(double value) {
  if (value >= 1e6) return fmt::format("{:.2f} s", value / 1e6);
  if (value >= 1e3) return fmt::format("{:.1f} ms", value / 1e3);
  return fmt::format("{:.1f} us", value);
}

std::string errors_text(const RunRecord& record) {
  if (record.errors.empty()) return "none";
  std::string text;
  for (const auto& [cause, count] : record.errors) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", cause, count);
  }
  return text;
}

std::string model_text(const RunPlan& plan) {
  const Layout& layout = plan.base.layout;
  return fmt::format("{}, {} of {} layers; {} tokens a block; pieces of {:.4g} KiB", plan.model,
                     layout.layers, plan.model_layers, layout.block_tokens,
                     static_cast<double>(layout.piece_bytes()) / 1024);
}

std::string way_text(const RunPlan& plan) {
  const RankConfig& base = plan.base;
  return fmt::format("{} over {}; {} prefill, {} decode; pools of {:.2f} GiB",
                     base.mode == Mode::kRead ? "decode pulls" : "prefill pushes",
                     plan.options.transport, base.prefill_ranks, base.decode_ranks,
                     static_cast<double>(base.layout.pool_bytes()) / kGiB);
}

std::string checked_text(const RunPlan& plan, const Statistics& statistics) {
  if (plan.base.verify == Verify::kOff) {
    return fmt::format("not compared; checksums {}", plan.base.checksum ? "on" : "off");
  }
  return fmt::format("{} blocks compared byte by byte, {} wrong; checksums {}",
                     statistics.verified_blocks, statistics.wrong_blocks,
                     plan.base.checksum ? "on" : "off");
}

}  // namespace

bool succeeded(const RunRecord& record, const Statistics& statistics) {
  return statistics.lost_requests == 0 && statistics.wrong_blocks == 0 && record.failures.empty() &&
         !record.interrupted;
}

std::string to_table(const RunPlan& plan, const RunRecord& record, const Statistics& statistics) {
  const Statistics& s = statistics;
  std::string text = rows({
      {"workload", fmt::format("{} requests of {}", s.requests, plan.workload.source)},
      {"model", model_text(plan)},
      {"way", way_text(plan)},
      {"moved", fmt::format("{:.2f} GiB in {} blocks; {} blocks were held already, {} evicted",
                            static_cast<double>(s.bytes) / kGiB, s.blocks, s.hit_blocks,
                            record.evicted_blocks)},
      {"throughput", fmt::format("{:.2f} GB/s while moving", s.gb_per_s)},
      {"limit", s.ratio_to_limit == 0
                    ? "not measured"
                    : fmt::format("{:.2f} GB/s for memcpy of the same ranges: ratio {:.2f}",
                                  s.limit_gb_per_s, s.ratio_to_limit)},
      {"batch",
       fmt::format("p50 {}, p99 {}, longest {}", us(s.p50_us), us(s.p99_us), us(s.max_us))},
      {"request", fmt::format("p50 {}, p99 {}, with filling and checking", us(s.request_p50_us),
                              us(s.request_p99_us))},
      {"checked", checked_text(plan, s)},
      {"errors", errors_text(record)},
      {"time", fmt::format("{:.1f} s in all, {:.1f} s of it moving", s.wall_s, s.moving_s)},
  });
  for (const std::string& note : record.notes) text += fmt::format("  note: {}\n", note);
  for (const std::string& failure : record.failures) {
    text += fmt::format("  FAILED: {}\n", failure);
  }
  if (record.interrupted) text += "  INTERRUPTED\n";
  return text + fmt::format("{}: {} of {} requests served, {} wrong blocks\n",
                            succeeded(record, s) ? "OK" : "FAILED", s.requests - s.lost_requests,
                            s.requests, s.wrong_blocks);
}

nlohmann::json to_json(const RunPlan& plan, const RunRecord& record, const Statistics& statistics) {
  const RankConfig& base = plan.base;
  const Statistics& s = statistics;
  return {{"ok", succeeded(record, s)},
          {"role", name_of(plan.options.half)},
          {"trace", plan.workload.source},
          {"model", plan.model},
          {"layers", base.layout.layers},
          {"model_layers", plan.model_layers},
          {"block_tokens", base.layout.block_tokens},
          {"piece_bytes", base.layout.piece_bytes()},
          {"pool_bytes", base.layout.pool_bytes()},
          {"transport", plan.options.transport},
          {"mode", name_of(base.mode)},
          {"verify", name_of(base.verify)},
          {"checksum", base.checksum},
          {"retries", base.retries},
          {"fault_seed", base.fault_seed},
          {"prefill_ranks", base.prefill_ranks},
          {"decode_ranks", base.decode_ranks},
          {"in_flight", plan.in_flight},
          {"rate", plan.options.rate},
          {"requests", s.requests},
          {"lost_requests", s.lost_requests},
          {"blocks", s.blocks},
          {"hit_blocks", s.hit_blocks},
          {"evicted_blocks", record.evicted_blocks},
          {"bytes", s.bytes},
          {"verified_blocks", s.verified_blocks},
          {"wrong_blocks", s.wrong_blocks},
          {"errors", record.errors},
          {"restarts", record.restarts},
          {"interrupted", record.interrupted},
          {"gb_per_s", s.gb_per_s},
          {"limit_gb_per_s", s.limit_gb_per_s},
          {"ratio_to_limit", s.ratio_to_limit},
          {"p50_us", s.p50_us},
          {"p99_us", s.p99_us},
          {"max_us", s.max_us},
          {"request_p50_us", s.request_p50_us},
          {"request_p99_us", s.request_p99_us},
          {"moving_s", s.moving_s},
          {"wall_s", s.wall_s},
          {"notes", record.notes},
          {"failures", record.failures}};
}

}  // namespace stagelink::cli::replay
