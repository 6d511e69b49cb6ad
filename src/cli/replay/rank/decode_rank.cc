#include "cli/replay/rank/decode_rank.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "cli/replay/rank/hex.h"

namespace stagelink::cli::replay {

using Json = nlohmann::json;

namespace {

constexpr auto kFirstPause = std::chrono::milliseconds(10);
constexpr uint32_t kMaxDoublings = 6;

// A prefill rank may have to fill the largest prompts of others first.
constexpr int kAnswerTimeouts = 3;

}  // namespace

Result<std::unique_ptr<DecodeRank>> DecodeRank::create(const RankContext& context) {
  std::optional<LimitProbe> probe;
  if (context.config.limit_every > 0) {
    SL_ASSIGN(probe, LimitProbe::create(context.config.layout));
  }
  SL_ASSIGN(auto pool,
            BlockPool::create(context.pool.bytes(), context.config.layout.block_bytes()));
  return std::unique_ptr<DecodeRank>(new DecodeRank(context, std::move(pool), std::move(probe)));
}

DecodeRank::DecodeRank(const RankContext& context, BlockPool pool, std::optional<LimitProbe> probe)
    : context_(context), pool_(std::move(pool)), probe_(std::move(probe)) {
  for (uint32_t rank = 0; rank < context.config.prefill_ranks; ++rank) {
    links_.push_back(std::make_unique<PrefillLink>(context_, rank));
  }
}

Status DecodeRank::on_event(const Json& event) {
  if (event.at("event") == "request") {
    on_request(event);
  } else if (event.at("event") == "peer") {
    const auto rank = event.at("rank").get<uint32_t>();
    SL_ASSIGN(auto descriptor, from_hex(event.at("descriptor").get<std::string>()));
    const bool was_known = links_.at(rank)->state() != PrefillLink::State::kDown;
    links_.at(rank)->set_descriptor(std::move(descriptor));
    if (was_known) on_link_down(rank, Status(Reason::kRestarted, "the rank was started again"));
  }
  return {};
}

void DecodeRank::on_request(const Json& event) {
  Request request;
  request.index = event.at("request").get<uint32_t>();
  request.prefill_rank = event.at("prefill_rank").get<uint32_t>();
  request.keys =
      block_keys(event.at("ids").get<std::vector<uint64_t>>(), event.at("tokens").get<uint32_t>(),
                 context_.config.layout.block_tokens);
  request.begun = Clock::now();
  enter(request, Phase::kLease);
  requests_.push_back(std::move(request));
}

void DecodeRank::on_message(Incoming incoming) {
  if (const auto* hello = std::get_if<Hello>(&incoming.message.body)) {
    if (hello->rank >= links_.size()) return;
    PrefillLink& link = *links_[hello->rank];
    const bool renewed = link.state() == PrefillLink::State::kUp;
    const Status opened = link.on_hello(incoming.source, *hello);
    if (!opened.ok()) {
      on_link_down(hello->rank, opened);
    } else if (renewed) {
      // Its messages to us may have been cut off on the way.
      on_link_down(hello->rank, Status(Reason::kConnectionCut, "the rank has connected again"));
    }
    return;
  }
  Request* const request = find(incoming.message.request);
  if (request == nullptr || request->phase != Phase::kWait ||
      request->attempt != incoming.message.attempt ||
      !links_[request->prefill_rank]->is(incoming.source)) {
    return;  // Stale.
  }
  if (const auto* failed = std::get_if<Failed>(&incoming.message.body)) {
    try_again(*request, failed->reason);
  } else {
    on_ready(*request, incoming.outcome, incoming.message);
  }
}

void DecodeRank::on_ready(Request& request, Reason outcome, const PairMessage& message) {
  const auto* part = std::get_if<ReadyPart>(&message.body);
  if (part == nullptr) return;
  if (outcome != Reason::kOk) {
    try_again(request, outcome);
    return;
  }
  if (part->first == 0) request.ready.clear();
  const bool fits = part->total == request.lease->missing.size();
  if (!fits || !append_part(request.ready, *part).ok()) {
    try_again(request, Reason::kFrame);
    return;
  }
  if (part->last()) enter(request, Phase::kArrive);
}

void DecodeRank::step() {
  for (uint32_t rank = 0; rank < links_.size(); ++rank) {
    if (const Status stepped = links_[rank]->step(); !stepped.ok()) on_link_down(rank, stepped);
  }
  for (Request& request : requests_) {
    if (advance(request)) break;
  }
  std::erase_if(requests_, [](const Request& request) { return request.phase == Phase::kOver; });
}

bool DecodeRank::advance(Request& request) {
  const auto now = Clock::now();
  if (now < request.not_before || request.phase == Phase::kOver) return false;
  const bool late = request.phase != Phase::kArrive && now >= request.due;
  if (late && request.phase == Phase::kLease) {
    lose(request, Reason::kNoSpace);
  } else if (late) {
    PrefillLink& link = *links_[request.prefill_rank];
    const bool asked = request.phase == Phase::kWait;
    try_again(request,
              asked || link.last_failure().ok() ? Reason::kTimedOut : link.last_failure().reason());
    if (asked) link.drop();  // A new hello sets both sides right.
  }
  if (request.phase == Phase::kLease) lease(request);
  if (request.phase == Phase::kAsk) ask(request);
  if (request.phase != Phase::kArrive) return false;
  arrive(request);
  return true;
}

void DecodeRank::lease(Request& request) {
  request.lease = pool_.acquire(request.keys);
  if (!request.lease) return;
  if (request.lease->missing.empty()) {
    finish(request);
  } else {
    enter(request, Phase::kAsk);
  }
}

void DecodeRank::ask(Request& request) {
  PrefillLink& link = *links_[request.prefill_rank];
  if (link.state() != PrefillLink::State::kUp || Clock::now() < request.not_before) return;
  std::vector<AskRecord> records;
  records.reserve(request.lease->missing.size());
  for (const uint32_t i : request.lease->missing) {
    records.push_back({request.keys[i], request.lease->blocks[i]});
  }
  request.ready.clear();
  request.verified = 0;
  request.wrong.clear();
  request.moving.resize(records.size());
  std::iota(request.moving.begin(), request.moving.end(), 0);
  link.pair().post(in_parts(request.index, request.attempt, std::span<const AskRecord>(records)));
  enter(request, Phase::kWait);
}

void DecodeRank::arrive(Request& request) {
  if (context_.config.mode == Mode::kRead) {
    const Status pulled = pull(request);
    if (pulled.scope() == Scope::kTransfer) {
      try_again(request, pulled.reason());
      if (request.phase == Phase::kAsk) enter(request, Phase::kArrive);  // The leases still stand.
      return;
    }
    if (!pulled.ok()) {
      links_[request.prefill_rank]->drop();
      try_again(request, pulled.reason());
      on_link_down(request.prefill_rank, pulled);
      return;
    }
  }
  auto report = check_arrived(context_.config, context_.pool.bytes(), arrived(request));
  request.verified += report.verified;
  if (!report.wrong.empty()) {
    context_.report({{"event", "wrong"},
                     {"request", request.index},
                     {"blocks", report.wrong.size()},
                     {"first", report.first_wrong}});
    request.wrong.insert(request.wrong.end(), report.wrong.begin(), report.wrong.end());
  }
  if (report.bad_checksums.empty()) {
    finish(request);
  } else {
    move_again(request, std::move(report.bad_checksums));
  }
}

Status DecodeRank::pull(const Request& request) {
  PairLink& pair = links_[request.prefill_rank]->pair();
  if (pair.session() == nullptr) return Status(Reason::kPeerLost, "the prefill rank is lost");
  std::vector<uint32_t> here;
  std::vector<uint32_t> there;
  for (const ArrivedBlock& block : arrived(request)) {
    here.push_back(block.block);
    there.push_back(request.ready[block.position].block);
  }
  const BlockRanges ranges(context_.config.layout, pair.remote_pool_blocks(), here, there);
  const auto start = Clock::now();
  SL_ASSIGN(auto transfer, pair.session()->read(ranges.list(), context_.config.timeout));
  SL_TRY(transfer.wait());
  const Duration spent = Clock::now() - start;
  context_.report_transfer(request.index, ranges.bytes(), start, spent);
  return {};
}

std::vector<ArrivedBlock> DecodeRank::arrived(const Request& request) const {
  std::vector<ArrivedBlock> blocks;
  blocks.reserve(request.moving.size());
  for (const uint32_t position : request.moving) {
    const uint32_t i = request.lease->missing[position];
    blocks.push_back(
        {position, request.keys[i], request.lease->blocks[i], request.ready[position].checksum});
  }
  return blocks;
}

void DecodeRank::move_again(Request& request, std::vector<uint32_t> positions) {
  context_.report_error(Reason::kChecksum, positions.size());
  if (++request.tries > context_.config.retries) {
    lose(request, Reason::kChecksum);
    return;
  }
  request.moving = std::move(positions);
  if (context_.config.mode == Mode::kRead) return;  // In kArrive still: pulled once more.
  ++request.attempt;
  links_[request.prefill_rank]->pair().post(
      in_parts(request.index, request.attempt, std::span<const uint32_t>(request.moving)));
  enter(request, Phase::kWait);
}

void DecodeRank::try_again(Request& request, Reason cause, uint64_t count) {
  context_.report_error(cause, count);
  const bool helps =
      scope_of(code_of(cause)) != Scope::kCall && scope_of(code_of(cause)) != Scope::kEngine;
  if (!helps || ++request.tries > context_.config.retries) {
    lose(request, cause);
    return;
  }
  ++request.attempt;
  request.not_before = Clock::now() + kFirstPause * (1 << std::min(request.tries, kMaxDoublings));
  enter(request, Phase::kAsk);
}

void DecodeRank::finish(Request& request) {
  const Duration limit = measure_limit(request);
  const auto& missing = request.lease->missing;
  std::vector<bool> good(missing.size(), true);
  for (const uint32_t position : request.wrong) good[position] = false;
  for (size_t i = 0; i < missing.size(); ++i) {
    if (good[i]) pool_.commit(request.lease->blocks[missing[i]]);
  }
  pool_.release(request.lease->blocks);
  if (!missing.empty()) say_done(request);
  const Duration spent = Clock::now() - request.begun - limit;
  context_.report({{"event", "done"},
                   {"request", request.index},
                   {"hit_blocks", request.keys.size() - missing.size()},
                   {"blocks", missing.size()},
                   {"verified_blocks", request.verified},
                   {"wrong_blocks", request.wrong.size()},
                   {"limit_ns", limit.count()},
                   {"total_ns", spent.count()}});
  request.phase = Phase::kOver;
}

Duration DecodeRank::measure_limit(const Request& request) {
  const bool sampled = probe_ && request.index % context_.config.limit_every == 0;
  if (!sampled || request.lease->missing.empty() || !request.wrong.empty()) return {};
  std::vector<LimitProbe::Block> blocks;
  for (size_t i = 0; i < request.lease->missing.size(); ++i) {
    const uint32_t at = request.lease->missing[i];
    blocks.push_back({request.keys[at], request.ready[i].block, request.lease->blocks[at]});
  }
  return probe_->measure(blocks);
}

void DecodeRank::lose(Request& request, Reason cause) {
  if (request.lease) {
    // A push that was given up may still be under way: its blocks stay leased for good.
    const bool all = context_.config.mode == Mode::kRead;
    for (uint32_t i = 0; i < request.keys.size(); ++i) {
      const bool missing = std::ranges::binary_search(request.lease->missing, i);
      if (all || !missing) pool_.release({&request.lease->blocks[i], 1});
    }
    say_done(request);
  }
  context_.report({{"event", "lost"}, {"request", request.index}, {"cause", reason_name(cause)}});
  request.phase = Phase::kOver;
}

void DecodeRank::say_done(const Request& request) {
  links_[request.prefill_rank]->pair().post({request.index, request.attempt, Done{}});
}

void DecodeRank::on_link_down(uint32_t rank, const Status& cause) {
  for (Request& request : requests_) {
    if (request.prefill_rank == rank && request.phase == Phase::kWait) {
      try_again(request, cause.reason());
    } else if (request.prefill_rank == rank && request.phase == Phase::kArrive &&
               context_.config.mode == Mode::kRead) {
      ++request.attempt;  // What it was told to pull may be gone.
      enter(request, Phase::kAsk);
    }
  }
}

void DecodeRank::enter(Request& request, Phase phase) const {
  request.phase = phase;
  const int timeouts = phase == Phase::kLease
                           ? kAnswerTimeouts * static_cast<int>(context_.config.retries + 2)
                           : kAnswerTimeouts;
  request.due = Clock::now() + timeouts * context_.config.timeout;
}

DecodeRank::Request* DecodeRank::find(uint32_t index) {
  const auto found = std::ranges::find(requests_, index, &Request::index);
  return found == requests_.end() ? nullptr : &*found;
}

Duration DecodeRank::patience() const {
  for (const Request& request : requests_) {
    const bool now = request.not_before <= Clock::now();
    if (request.phase == Phase::kArrive && now) return Duration::zero();
  }
  for (const auto& link : links_) {
    if (link->pair().has_queued()) return std::chrono::milliseconds(1);
  }
  return std::chrono::milliseconds(requests_.empty() ? 100 : 10);
}

Json DecodeRank::summary() const { return {{"evicted_blocks", pool_.evictions()}}; }

}  // namespace stagelink::cli::replay
