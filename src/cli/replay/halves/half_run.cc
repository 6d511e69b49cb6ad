#include "cli/replay/halves/half_run.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/replay/halves/meeting.h"
#include "cli/replay/halves/rank_host.h"
#include "cli/replay/interrupt.h"

namespace stagelink::cli::replay {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostLines = 100;

// All on which the halves must agree. The memory of each is its own affair.
Json terms_of(const RunPlan& plan) {
  const RankConfig& base = plan.base;
  const Layout& layout = base.layout;
  return {{"model", plan.model},
          {"layers", layout.layers},
          {"dtype bytes", layout.vector_bytes},
          {"heads", layout.heads},
          {"block tokens", layout.block_tokens},
          {"transport", plan.options.transport},
          {"mode", name_of(base.mode)},
          {"checksum", base.checksum},
          {"prefill ranks", base.prefill_ranks},
          {"decode ranks", base.decode_ranks},
          {"largest request", base.largest_request},
          {"fault seed", base.fault_seed}};
}

Result<Meeting> meeting_of(const RunPlan& plan) {
  Meeting meeting;
  SL_ASSIGN(meeting.bind, parse_endpoint(plan.options.bind));
  SL_ASSIGN(meeting.peer, parse_endpoint(plan.options.peer));
  meeting.timeout = plan.options.start_timeout;
  SL_ASSIGN(const auto options, plan.base.engine_options());
  SL_ASSIGN(meeting.proof, HalfProof::load(options.secret_file));
  meeting.terms = terms_of(plan);
  return meeting;
}

double number(const Json& report, const char* name) {
  const auto found = report.find(name);
  return found != report.end() && found->is_number() ? found->get<double>() : 0;
}

uint64_t count(const Json& report, const char* name) {
  const auto found = report.find(name);
  return found != report.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
}

std::vector<std::string> lines(const Json& report, const char* name) {
  std::vector<std::string> out;
  const auto found = report.find(name);
  if (found == report.end() || !found->is_array()) return out;
  for (const Json& line : *found) {
    if (line.is_string() && out.size() < kMostLines) {
      out.push_back(escape_control(line.get<std::string>()));
    }
  }
  return out;
}

Statistics statistics_of(const Json& report) {
  Statistics s;
  s.requests = static_cast<uint32_t>(count(report, "requests"));
  s.lost_requests = static_cast<uint32_t>(count(report, "lost_requests"));
  s.blocks = count(report, "blocks");
  s.hit_blocks = count(report, "hit_blocks");
  s.verified_blocks = count(report, "verified_blocks");
  s.wrong_blocks = count(report, "wrong_blocks");
  s.bytes = count(report, "bytes");
  s.wall_s = number(report, "wall_s");
  s.moving_s = number(report, "moving_s");
  s.gb_per_s = number(report, "gb_per_s");
  s.limit_gb_per_s = number(report, "limit_gb_per_s");
  s.ratio_to_limit = number(report, "ratio_to_limit");
  s.p50_us = number(report, "p50_us");
  s.p99_us = number(report, "p99_us");
  s.max_us = number(report, "max_us");
  s.request_p50_us = number(report, "request_p50_us");
  s.request_p99_us = number(report, "request_p99_us");
  return s;
}

RunRecord record_of(const Json& report) {
  RunRecord record;
  const auto errors = report.find("errors");
  if (errors != report.end() && errors->is_object()) {
    for (const auto& [cause, value] : errors->items()) {
      if (record.errors.size() < kReasonCount && value.is_number_unsigned()) {
        record.errors[escape_control(cause)] = value.get<uint64_t>();
      }
    }
  }
  record.notes = lines(report, "notes");
  record.failures = lines(report, "failures");
  record.evicted_blocks = count(report, "evicted_blocks");
  record.restarts = static_cast<uint32_t>(count(report, "restarts"));
  record.interrupted = report.value("interrupted", Json()) == Json(true);
  return record;
}

}  // namespace

Result<PrefillSide> prefill_side(const RunPlan& plan) {
  PrefillSide side;
  if (plan.options.half != Half::kDecode) {
    side.ranks = std::make_unique<LocalRanks>();
    return side;
  }
  SL_ASSIGN(const Meeting meeting, meeting_of(plan));
  const InterruptGuard guard;
  SL_ASSIGN(ControlChannel channel, go_to_prefill(meeting));
  auto remote = std::make_unique<RemoteRanks>(std::move(channel), meeting.peer.to_string(),
                                              plan.base.prefill_ranks);
  side.remote = remote.get();
  side.ranks = std::move(remote);
  return side;
}

Result<HalfReport> run_prefill_half(const RunPlan& plan) {
  SL_ASSIGN(const Meeting meeting, meeting_of(plan));
  const InterruptGuard guard;
  SL_ASSIGN(ControlChannel channel, wait_for_decode(meeting));
  RankHost host(plan, std::move(channel), meeting.peer.host);
  SL_ASSIGN(const RankHost::Outcome outcome, host.serve());
  return HalfReport{record_of(outcome.report), statistics_of(outcome.report), outcome.exit_code};
}

}  // namespace stagelink::cli::replay
