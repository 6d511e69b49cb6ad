#include "cli/replay/rank/prefill_rank.h"

#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "cli/replay/rank/checksum.h"
#include "cli/replay/rank/ranges.h"
#include "cli/replay/workload/block_content.h"

namespace stagelink::cli::replay {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

namespace {

// A decode rank that does not answer after these is left to say hello itself.
constexpr uint32_t kMaxFailedAttaches = 5;
constexpr auto kAttachPause = std::chrono::milliseconds(200);
constexpr auto kAttachTimeout = std::chrono::seconds(2);

}  // namespace

Result<std::unique_ptr<PrefillRank>> PrefillRank::create(const RankContext& context) {
  SL_ASSIGN(auto pool,
            BlockPool::create(context.pool.bytes(), context.config.layout.block_bytes()));
  return std::unique_ptr<PrefillRank>(new PrefillRank(context, std::move(pool)));
}

PrefillRank::PrefillRank(const RankContext& context, BlockPool pool)
    : context_(context), pool_(std::move(pool)), checksums_(context.config.layout.pool_blocks, 0) {}

Status PrefillRank::on_event(const Json& event) {
  if (event.at("event") != "peer_gone") return {};
  const auto found = decodes_.find(event.at("rank").get<uint32_t>());
  if (found == decodes_.end()) return {};
  // The process is dead: nothing reads the blocks any more.
  for (auto& [request, ask] : found->second.asks) end(ask);
  decodes_.erase(found);
  return {};
}

void PrefillRank::on_message(Incoming incoming) {
  if (const auto* hello = std::get_if<Hello>(&incoming.message.body)) {
    on_hello(incoming.source, *hello);
    return;
  }
  const auto rank = rank_of(incoming.source);
  if (!rank) return;  // A former life of a decode rank.
  auto& asks = decodes_.at(*rank).asks;
  if (const auto* ask = std::get_if<AskPart>(&incoming.message.body)) {
    on_ask(*rank, incoming.message, *ask);
  } else if (const auto* again = std::get_if<AgainPart>(&incoming.message.body)) {
    on_again(*rank, incoming.message, *again);
  } else if (std::holds_alternative<Done>(incoming.message.body)) {
    const auto found = asks.find(incoming.message.request);
    if (found == asks.end()) return;
    end(found->second);
    asks.erase(found);
  }
}

void PrefillRank::on_hello(const InstanceId& source, const Hello& hello) {
  const RankConfig& config = context_.config;
  Layout expected = config.layout;
  expected.pool_blocks = hello.layout.pool_blocks;
  if (hello.layout != expected || hello.rank >= config.decode_ranks) {
    log(LogLevel::kError, "replay", fmt::format("decode rank {} has another layout", hello.rank));
    return;
  }
  Decode& decode =
      decodes_.try_emplace(hello.rank, PairLink(context_.engine, context_.pool.region()))
          .first->second;
  if (decode.instance != source) decode.link.drop();  // A new life of that rank.
  decode.instance = source;
  decode.hello = hello;
  // Its messages may have been cut off on the way, so it asks again for all that it still wants.
  for (auto& [request, ask] : decode.asks) end(ask);
  decode.asks.clear();
  decode.failed_attaches = 0;
  attach_again(decode);
}

// Connects, if need be, and says hello. Decode takes that as a sign to ask again for what it still
// waits for.
Status PrefillRank::attach(Decode& decode) {
  if (!decode.link.connected()) {
    SL_TRY(decode.link.connect(decode.hello.descriptor, kAttachTimeout));
  }
  if (context_.config.mode == Mode::kWrite) {
    SL_TRY(decode.link.open_session(decode.hello.region, decode.hello.layout.pool_blocks));
  }
  decode.link.post(
      {0, 0,
       Hello{context_.config.rank, context_.config.layout, context_.engine.descriptor(),
             context_.pool.region().descriptor().pack()}});
  return {};
}

void PrefillRank::attach_again(Decode& decode) {
  const Status attached = attach(decode);
  if (attached.ok()) {
    decode.failed_attaches = 0;
    return;
  }
  context_.report_error(attached.reason());
  decode.link.drop();
  ++decode.failed_attaches;
  decode.next_attach = Clock::now() + kAttachPause;
}

void PrefillRank::on_ask(uint32_t decode_rank, const PairMessage& message, const AskPart& part) {
  auto& asks = decodes_.at(decode_rank).asks;
  const auto found = asks.find(message.request);
  if (part.first == 0) {
    if (found != asks.end()) {
      if (message.attempt < found->second.attempt) return;
      end(found->second);
    }
    asks.insert_or_assign(message.request,
                          Ask{decode_rank, message.request, message.attempt, {}, {}, {}});
  } else if (found == asks.end() || found->second.attempt != message.attempt) {
    return;
  }
  Ask& ask = asks.at(message.request);
  const bool fits = part.total <= pool_.capacity();
  if (!fits || !append_part(ask.records, part).ok()) {
    decodes_.at(decode_rank)
        .link.post(
            {message.request, message.attempt, Failed{fits ? Reason::kFrame : Reason::kTooLarge}});
    asks.erase(message.request);
    return;
  }
  if (part.last()) jobs_.push_back({decode_rank, message.request, message.attempt});
}

void PrefillRank::on_again(uint32_t decode_rank, const PairMessage& message,
                           const AgainPart& part) {
  auto& asks = decodes_.at(decode_rank).asks;
  const auto found = asks.find(message.request);
  if (found == asks.end() || !found->second.lease) return;
  Ask& ask = found->second;
  if (part.first == 0) {
    ask.attempt = message.attempt;
    ask.again.clear();
  }
  if (ask.attempt != message.attempt || !append_part(ask.again, part).ok()) return;
  for (const uint32_t position : part.records) {
    if (position >= ask.records.size()) return;
  }
  // Before those that may have to wait for this request's blocks.
  if (part.last()) jobs_.push_front({decode_rank, message.request, message.attempt});
}

void PrefillRank::end(Ask& ask) {
  if (ask.lease) pool_.release(ask.lease->blocks);
  ask.lease.reset();
}

void PrefillRank::step() {
  for (auto& [rank, decode] : decodes_) {
    if (const Status flushed = decode.link.flush(); !flushed.ok()) {
      context_.report_error(flushed.reason());
    }
    const bool attach_now = !decode.link.connected() && Clock::now() >= decode.next_attach;
    if (attach_now && decode.failed_attaches < kMaxFailedAttaches) attach_again(decode);
  }
  blocked_ = false;
  while (!jobs_.empty()) {
    const Job job = jobs_.front();
    const auto decode = decodes_.find(job.decode_rank);
    if (decode == decodes_.end()) {
      jobs_.pop_front();
      continue;
    }
    const auto ask = decode->second.asks.find(job.request);
    if (ask == decode->second.asks.end() || ask->second.attempt != job.attempt) {
      jobs_.pop_front();  // Overtaken by a later attempt, or over.
      continue;
    }
    blocked_ = !serve(decode->second, ask->second);
    if (!blocked_) jobs_.pop_front();
    return;
  }
}

bool PrefillRank::serve(Decode& decode, Ask& ask) {
  if (!ask.lease) {
    std::vector<BlockKey> keys;
    keys.reserve(ask.records.size());
    for (const AskRecord& record : ask.records) keys.push_back(record.key);
    ask.lease = pool_.acquire(keys);
    if (!ask.lease) return false;
    fill(ask);
  }
  if (context_.config.mode == Mode::kWrite) {
    push(decode, ask);
  } else {
    decode.link.post(
        in_parts(ask.request, ask.attempt, std::span<const ReadyRecord>(ready_records(ask))));
  }
  return true;
}

void PrefillRank::fill(const Ask& ask) {
  const Layout& layout = context_.config.layout;
  for (const uint32_t position : ask.lease->missing) {
    const uint32_t block = ask.lease->blocks[position];
    fill_block(layout, context_.pool.bytes(), ask.records[position].key, block);
    if (context_.config.checksum) {
      checksums_[block] = block_checksum(layout, context_.pool.bytes(), block);
    }
    pool_.commit(block);
  }
  filled_blocks_ += ask.lease->missing.size();
}

std::vector<ReadyRecord> PrefillRank::ready_records(const Ask& ask) const {
  std::vector<ReadyRecord> records;
  records.reserve(ask.lease->blocks.size());
  for (const uint32_t block : ask.lease->blocks) records.push_back({block, checksums_[block]});
  return records;
}

void PrefillRank::push(Decode& decode, Ask& ask) {
  const std::vector<ReadyRecord> records = ready_records(ask);
  const auto ready = in_parts(ask.request, ask.attempt, std::span<const ReadyRecord>(records));
  const Status pushed = push_blocks(decode, ask, ready);
  ask.again.clear();
  if (pushed.ok()) return;
  if (pushed.scope() == Scope::kTransfer) {
    decode.link.post({ask.request, ask.attempt, Failed{pushed.reason()}});
    return;
  }
  // Nothing gets through on this link any more. After the next attach() decode asks again.
  context_.report_error(pushed.reason());
  decode.link.drop();
}

Status PrefillRank::push_blocks(Decode& decode, const Ask& ask,
                                const std::vector<PairMessage>& ready) {
  if (decode.link.session() == nullptr) {
    return Status(Reason::kPeerLost, "the decode rank is not connected");
  }
  std::vector<uint32_t> from;
  std::vector<uint32_t> to;
  const size_t count = ask.again.empty() ? ask.records.size() : ask.again.size();
  for (size_t i = 0; i < count; ++i) {
    const size_t position = ask.again.empty() ? i : ask.again[i];
    from.push_back(ask.lease->blocks[position]);
    to.push_back(ask.records[position].block);
  }
  const BlockRanges ranges(context_.config.layout, decode.link.remote_pool_blocks(), from, to);
  // All parts but the last may be there early; the last one comes after the bytes.
  decode.link.post(std::span(ready).first(ready.size() - 1));
  SL_TRY(decode.link.flush_all(Deadline::in(context_.config.timeout)));

  const auto start = Clock::now();
  SL_ASSIGN(auto transfer, decode.link.session()->write(ranges.list(), context_.config.timeout));
  const Status notified = decode.link.notify_after(ready.back(), transfer);
  const Status moved = transfer.wait();
  const Duration spent = Clock::now() - start;
  SL_TRY(moved);
  context_.report_transfer(ask.request, ranges.bytes(), start, spent);
  if (notified.code() != Code::kBusy) return notified;
  // The batch was over before its notification, and the ring is full of what came before.
  decode.link.post(ready.back());
  return decode.link.flush_all(Deadline::in(context_.config.timeout));
}

std::optional<uint32_t> PrefillRank::rank_of(const InstanceId& instance) const {
  for (const auto& [rank, decode] : decodes_) {
    if (decode.instance == instance) return rank;
  }
  return {};
}

Duration PrefillRank::patience() const {
  for (const auto& [rank, decode] : decodes_) {
    if (decode.link.has_queued()) return std::chrono::milliseconds(1);
  }
  if (!jobs_.empty() && !blocked_) return Duration::zero();
  return std::chrono::milliseconds(100);
}

Json PrefillRank::summary() const {
  return {{"filled_blocks", filled_blocks_}, {"evicted_blocks", pool_.evictions()}};
}

}  // namespace stagelink::cli::replay
