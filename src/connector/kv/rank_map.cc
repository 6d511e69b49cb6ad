#include "connector/kv/rank_map.h"

#include <algorithm>

#include <fmt/format.h>

#include "connector/block_layout/head_map.h"

namespace stagelink::kv {
namespace {

using block_layout::HeadRoute;
using block_layout::TpPair;

Status bad_map(std::string message) { return Status(Reason::kInvalidArgument, std::move(message)); }

// Heads of a rank's cache where `heads` are dealt to `size` ranks.
uint32_t shard_heads(uint32_t heads, uint32_t size) noexcept {
  return heads > size ? heads / size : 1;
}

std::string share_text(const HeadShare& share) {
  if (share.whole()) return "all of it";
  if (share.count == 1) return fmt::format("part {} of {}", share.first, share.of);
  return fmt::format("parts {} to {} of {}", share.first, share.first + share.count - 1, share.of);
}

std::vector<RankRoute> shares_of(const std::vector<HeadRoute>& routes, uint32_t ours,
                                 uint32_t theirs) {
  std::vector<RankRoute> out;
  out.reserve(routes.size());
  for (const HeadRoute& route : routes) {
    out.push_back({route.remote_rank,
                   {route.slice.local_first, route.slice.count, ours},
                   {route.slice.remote_first, route.slice.count, theirs}});
  }
  return out;
}

}  // namespace

Result<HeadSpan> heads_of(const HeadShare& share, uint64_t heads) {
  if (heads % share.of != 0) {
    return bad_map(
        fmt::format("KV head count must be divisible for heterogeneous TP slicing: "
                    "heads_in_shard={}, num_slices={}",
                    heads, share.of));
  }
  const uint64_t each = heads / share.of;
  return HeadSpan{share.first * each, share.count * each};
}

Result<RankMap> RankMap::create(const TpTopology& topology) {
  for (const auto& [name, size] :
       {std::pair("from_tp", topology.from_tp), std::pair("to_tp", topology.to_tp)}) {
    if (size >= 1 && size <= kMaxTpSize) continue;
    return bad_map(fmt::format("{} is {}, not within 1 to {}", name, size, kMaxTpSize));
  }
  const uint32_t large = std::max(topology.from_tp, topology.to_tp);
  const uint32_t small = std::min(topology.from_tp, topology.to_tp);
  if (large % small != 0) {
    return bad_map(
        fmt::format("KV TP mapping must be divisible: source_tp_size={}, target_tp_size={}",
                    topology.from_tp, topology.to_tp));
  }
  RankMap map(topology);
  SL_TRY(map.fill());
  SL_TRY(map.prove());
  return map;
}

Status RankMap::fill() {
  // Without heads the routes count in the parts that the larger side has; with MLA all ranks hold
  // copies of one.
  heads_ = topology_.mla             ? 1
           : topology_.kv_heads != 0 ? topology_.kv_heads
                                     : std::max(topology_.from_tp, topology_.to_tp);
  const TpPair pair{heads_, topology_.from_tp, topology_.to_tp};
  const uint32_t source = shard_heads(heads_, topology_.from_tp);
  const uint32_t target = shard_heads(heads_, topology_.to_tp);
  for (uint32_t rank = 0; rank < topology_.from_tp; ++rank) {
    SL_ASSIGN(const std::vector<HeadRoute> routes, block_layout::routes_from(pair, rank));
    sends_.push_back(shares_of(routes, source, target));
    payloads_ += static_cast<uint32_t>(routes.size());
  }
  for (uint32_t rank = 0; rank < topology_.to_tp; ++rank) {
    SL_ASSIGN(const std::vector<HeadRoute> routes, block_layout::routes_to(pair, rank));
    gets_.push_back(shares_of(routes, target, source));
  }
  return {};
}

// Apart from how the routes were found: from who holds which head.
Status RankMap::prove() const {
  uint32_t got = 0;
  for (uint32_t to = 0; to < topology_.to_tp; ++to) {
    SL_ASSIGN(const auto wanted, block_layout::heads_of_rank(heads_, topology_.to_tp, to));
    uint32_t next = 0;  // Heads come in order, so each is there exactly once.
    for (const RankRoute& route : gets_[to]) {
      SL_ASSIGN(const auto held,
                block_layout::heads_of_rank(heads_, topology_.from_tp, route.rank));
      const bool same_head = held.first + route.theirs.first == wanted.first + route.ours.first &&
                             route.theirs.first + route.theirs.count <= held.count;
      const RankRoute mirrored{to, route.theirs, route.ours};
      const auto& puts = sends_[route.rank];
      if (route.ours.first != next || route.ours.count != route.theirs.count || !same_head ||
          std::ranges::count(puts, mirrored) != 1) {
        return Status(Reason::kInvalidState,
                      fmt::format("the rank map {} -> {} is wrong at receiver {}",
                                  topology_.from_tp, topology_.to_tp, to));
      }
      next += route.ours.count;
      ++got;
    }
    if (next != wanted.count) {
      return Status(Reason::kInvalidState, fmt::format("receiver {} lacks heads", to));
    }
  }
  if (got == payloads_) return {};
  return Status(Reason::kInvalidState,
                fmt::format("{} payloads are put, {} are got", payloads_, got));
}

Result<std::vector<RankRoute>> RankMap::sends(uint32_t from_rank) const {
  if (from_rank < sends_.size()) return sends_[from_rank];
  return bad_map(fmt::format("sender rank {}, from_tp is {}", from_rank, topology_.from_tp));
}

Result<std::vector<RankRoute>> RankMap::gets(uint32_t to_rank) const {
  if (to_rank < gets_.size()) return gets_[to_rank];
  return bad_map(fmt::format("receiver rank {}, to_tp is {}", to_rank, topology_.to_tp));
}

std::string RankMap::fan() const {
  size_t senders = 0;
  size_t receivers = 0;
  size_t idle = 0;
  for (const auto& routes : sends_) {
    receivers = std::max(receivers, routes.size());
    idle += routes.empty() ? 1 : 0;
  }
  for (const auto& routes : gets_) senders = std::max(senders, routes.size());
  std::string out = topology_.mla ? "MLA, each payload whole, " : "";
  if (senders == 1 && receivers == 1) {
    out += "one to one";
  } else if (senders > 1) {
    out += fmt::format("{} senders to each receiver", senders);
  } else {
    out += fmt::format("each sender to {} receivers", receivers);
  }
  if (idle > 0) out += fmt::format("; {} senders hold copies that nobody reads", idle);
  return out;
}

std::vector<std::string> RankMap::lines() const {
  std::vector<std::string> out;
  for (size_t to = 0; to < gets_.size(); ++to) {
    std::string line = fmt::format("rank {} <- ", to);
    for (const RankRoute& route : gets_[to]) {
      if (&route != gets_[to].data()) line += ", ";
      line += fmt::format("rank {} ({})", route.rank, share_text(route.theirs));
    }
    out.push_back(std::move(line));
  }
  return out;
}

Result<uint32_t> stated_rank(int64_t rank, uint32_t tp_size, std::string_view side) {
  if (rank == -1 && tp_size == 1) return uint32_t{0};
  if (rank == -1) {
    return bad_map(fmt::format(
        "the {} has {} ranks and nobody has said which one this is: set `tp_rank`", side, tp_size));
  }
  if (rank >= 0 && rank < int64_t{tp_size}) return static_cast<uint32_t>(rank);
  return bad_map(fmt::format("tp_rank is {}, the {} has {} ranks", rank, side, tp_size));
}

std::string kv_key(const TpTopology& topology, std::string_view request, const KvEdge& edge,
                   uint32_t from_rank, uint32_t to_rank) {
  if (topology.from_tp <= 1 && topology.to_tp <= 1) {
    return fmt::format("omni_{}_to_{}_kv_cache_{}", edge.from_stage, edge.to_stage, request);
  }
  return fmt::format("{}_{}_0_{}_{}", request, edge.from_stage, from_rank, to_rank);
}

}  // namespace stagelink::kv
