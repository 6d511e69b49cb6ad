#include "cli/replay/run_plan.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/endpoint.h"
#include "base/text.h"
#include "cli/replay/faults.h"
#include "cli/replay/workload/model.h"
#include "config/engine_config.h"

namespace stagelink::cli::replay {
namespace {

constexpr double kGiB = 1 << 30;
constexpr uint32_t kMaxRanks = 64;
constexpr uint32_t kMaxInFlight = 1024;
constexpr uint32_t kPacedInFlight = 16;
constexpr uint32_t kLimitSamples = 400;  // About so many requests carry a measured limit.
constexpr uint64_t kMinPoolBytes = 64 << 20;
constexpr auto kStartTimeout = std::chrono::seconds(60);
constexpr auto kStartPerGiB = std::chrono::seconds(10);  // Memory is touched at the start.

Status bad_option(const char* name, const std::string& what) {
  return Status(Reason::kInvalidArgument, fmt::format("--{}: {}", name, what));
}

const config::OptionRow& engine_row(std::string_view name) {
  return *config::engine_option_table().find(name);
}

// What the ranks' engines will be told is refused here, under the name that the user knows.
Status check_engine_bounds(const ReplayOptions& options) {
  const config::OptionRow& time = engine_row("transfer_timeout");
  const std::pair<const char*, Duration> times[] = {{"timeout", options.timeout},
                                                    {"ready-timeout", options.ready_timeout},
                                                    {"start-timeout", options.start_timeout}};
  for (const auto& [name, value] : times) {
    const bool good = value.count() >= time.min && value.count() <= time.max;
    if (good || value == Duration::zero()) continue;
    return bad_option(name,
                      fmt::format("{} is not {}", format_duration(value), expected_text(time)));
  }
  // Each rank adds its number.
  const auto most = static_cast<uint64_t>(engine_row("fault_seed").max) - kMaxRanks;
  if (options.fault_seed > most) {
    return bad_option("fault-seed",
                      fmt::format("{} is not from 0 to {}", options.fault_seed, most));
  }
  return {};
}

Status check_ranges(const ReplayOptions& options) {
  for (const auto& [name, ranks] : {std::pair("prefill-ranks", options.prefill_ranks),
                                    std::pair("decode-ranks", options.decode_ranks)}) {
    if (ranks < 1 || ranks > kMaxRanks) {
      return bad_option(name, fmt::format("{} is not from 1 to {}", ranks, kMaxRanks));
    }
  }
  if (!std::isfinite(options.rate) || options.rate < 0) {
    return bad_option("rate", fmt::format("{} is not 0 or more", options.rate));
  }
  if (options.in_flight > kMaxInFlight) {
    return bad_option("in-flight", fmt::format("{} is above {}", options.in_flight, kMaxInFlight));
  }
  return check_engine_bounds(options);
}

// The largest request moves in one batch.
Status check_pieces(const RunPlan& plan) {
  const uint64_t ranges = uint64_t{plan.size.largest} * plan.base.layout.planes();
  const auto most = static_cast<uint64_t>(engine_row("max_ranges").max);
  if (ranges <= most) return {};
  return Status(Reason::kTooManyRanges,
                fmt::format("request {} of {} has {} pieces, a batch takes at most {}: lower "
                            "--scale or --requests, or raise --block-tokens",
                            plan.size.largest_request, plan.workload.source, ranges, most));
}

// What the environment and the configuration file tell the ranks' engines.
Status check_engines(const RunPlan& plan) {
  SL_ASSIGN(const auto options, plan.base.engine_options());
  return config::check_engine_options(options);
}

Result<std::vector<std::string>> transports_of(const std::string& name) {
  if (name == "auto") return EngineOptions().transports;
  for (const char* known : {"shm", "cma", "unix", "tcp"}) {
    if (name == known) return std::vector<std::string>{name};
  }
  return bad_option("transport", fmt::format("\"{}\" is none of auto, shm, cma, unix, tcp", name));
}

// The halves' addresses: of this half, where its engines listen too, and of the other.
Status check_half(const ReplayOptions& options, RankConfig& base) {
  const bool alone = options.half == Half::kAll;
  if (alone && !options.peer.empty())
    return bad_option("peer", "only with --role prefill or decode");
  if (alone && !options.bind.empty())
    return bad_option("bind", "only with --role prefill or decode");
  if (alone) return {};
  const Result<Endpoint> bind = parse_endpoint(options.bind);
  if (!bind.ok()) return bad_option("bind", std::string(bind.status().message()));
  const Result<Endpoint> peer = parse_endpoint(options.peer);
  if (!peer.ok()) return bad_option("peer", std::string(peer.status().message()));
  if ((*peer).wildcard()) {
    return bad_option("peer", fmt::format("{} is no address of one host", options.peer));
  }
  if (options.half == Half::kPrefill && (*bind).port == 0) {
    return bad_option("bind", "the prefill half listens there and needs a port");
  }
  if (options.half == Half::kDecode && (*peer).port == 0) {
    return bad_option("peer", "the port of the prefill half's --bind is missing");
  }
  base.bind = Endpoint{(*bind).host, 0}.to_string();
  return {};
}

uint64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  uint64_t kib = 0;
  std::string rest;
  while (file >> name >> kib && std::getline(file, rest)) {
    if (name == "MemAvailable:") return kib << 10;
  }
  return std::numeric_limits<uint64_t>::max();
}

Status size_pools(RunPlan& plan) {
  Layout& layout = plan.base.layout;
  const uint64_t block = layout.block_bytes();
  const uint64_t wanted = plan.options.memory_bytes != 0
                              ? plan.options.memory_bytes
                              : std::max(2 * plan.size.largest * block, kMinPoolBytes);
  const uint64_t blocks = wanted / block;
  if (blocks < plan.size.largest) {
    return Status(
        Reason::kNoSpace,
        fmt::format("request {} of {} needs {} blocks of {} bytes ({:.2f} GiB), a pool of {} bytes "
                    "has {}: raise --memory, or lower --scale or --requests",
                    plan.size.largest_request, plan.workload.source, plan.size.largest, block,
                    static_cast<double>(plan.size.largest * block) / kGiB, wanted, blocks));
  }
  if (blocks > std::numeric_limits<uint32_t>::max() / 2) {
    return bad_option("memory", fmt::format("{} blocks are too many", blocks));
  }
  layout.pool_blocks = static_cast<uint32_t>(blocks);
  const uint64_t available = available_memory();
  if (plan.memory_needed() > available) {
    return Status(Reason::kNoSpace,
                  fmt::format("the pools of {} ranks need {:.1f} GiB together, {:.1f} GiB are "
                              "available: lower --scale, --memory, --requests or the ranks",
                              plan.ranks_here(), static_cast<double>(plan.memory_needed()) / kGiB,
                              static_cast<double>(available) / kGiB));
  }
  return {};
}

Result<Layout> layout_of(const ReplayOptions& options, const ModelGeometry& model) {
  SL_ASSIGN(const uint32_t element,
            dtype_bytes(options.dtype.empty() ? model.dtype : options.dtype));
  uint32_t layers = 1;
  if (!options.scale.empty()) {
    SL_ASSIGN(layers, scaled_layers(model.layers, options.scale));
  }
  return make_layout(model, layers, element, options.block_tokens);
}

}  // namespace

std::string_view name_of(Half half) noexcept {
  return half == Half::kAll ? "all" : half == Half::kPrefill ? "prefill" : "decode";
}

Result<RunPlan> make_plan(const ReplayOptions& options) {
  SL_TRY(check_ranges(options));
  SL_ASSIGN(const auto model, find_model(options.model));
  RunPlan plan;
  plan.options = options;
  plan.model = model.name;
  plan.model_layers = model.layers;
  RankConfig& base = plan.base;
  SL_ASSIGN(base.layout, layout_of(options, model));
  SL_ASSIGN(base.transports, transports_of(options.transport));
  SL_TRY(check_half(options, base));
  base.secret_file = options.secret_file;
  if (options.trace.empty()) {
    plan.workload = built_in_workload(options.seed);
  } else {
    SL_ASSIGN(plan.workload, load_trace(options.trace, options.requests));
  }
  plan.size = measure(plan.workload, options.block_tokens);
  plan.in_flight = options.in_flight != 0 ? options.in_flight
                   : options.rate > 0     ? kPacedInFlight
                                          : 1;
  base.prefill_ranks = options.prefill_ranks;
  base.decode_ranks = options.decode_ranks;
  base.mode = options.mode;
  base.verify = options.verify;
  base.checksum = options.checksum;
  base.retries = options.retries;
  base.largest_request = plan.size.largest;
  const auto requests = static_cast<uint32_t>(plan.workload.requests.size());
  base.limit_every = (requests + kLimitSamples - 1) / kLimitSamples;
  SL_TRY(check_pieces(plan));
  SL_TRY(size_pools(plan));
  set_faults(options.fault_seed, plan.size, base);
  if (options.timeout > Duration::zero()) base.timeout = options.timeout;
  plan.ready_timeout =
      options.ready_timeout > Duration::zero()
          ? options.ready_timeout
          : kStartTimeout + static_cast<int>(plan.memory_needed() >> 30) * kStartPerGiB;
  SL_TRY(check_engines(plan));
  return plan;
}

uint64_t RunPlan::memory_needed() const noexcept {
  // A decode rank also has the two regions between which the limit is measured.
  const uint64_t prefill = options.half == Half::kDecode ? 0 : base.prefill_ranks;
  const uint64_t decode = options.half == Half::kPrefill ? 0 : base.decode_ranks;
  return (prefill + decode * 3) * base.layout.pool_bytes();
}

uint32_t RunPlan::ranks_here() const noexcept {
  return (options.half == Half::kDecode ? 0 : base.prefill_ranks) +
         (options.half == Half::kPrefill ? 0 : base.decode_ranks);
}

uint32_t RunPlan::decode_rank_of(uint32_t request) const noexcept {
  return request % base.decode_ranks;
}

uint32_t RunPlan::prefill_rank_of(uint32_t request) const noexcept {
  return request / base.decode_ranks % base.prefill_ranks;
}

}  // namespace stagelink::cli::replay
