#include "connector/block_layout/head_map.h"

#include <algorithm>

#include <fmt/format.h>

namespace stagelink::block_layout {
namespace {

constexpr uint32_t kMaxSize = 65536;

Status wrong(std::string message) { return Status(Reason::kInvalidArgument, std::move(message)); }

Status check(const char* name, uint32_t total_heads, uint32_t tp_size) {
  if (total_heads < 1 || total_heads > kMaxSize) {
    return wrong(fmt::format("{} KV heads, not within 1 to {}", total_heads, kMaxSize));
  }
  if (tp_size < 1 || tp_size > kMaxSize) {
    return wrong(fmt::format("{} is {}, not within 1 to {}", name, tp_size, kMaxSize));
  }
  if (total_heads % tp_size == 0 || tp_size % total_heads == 0) return {};
  return wrong(
      fmt::format("{} KV heads and {} {}: neither divides the other", total_heads, name, tp_size));
}

HeadRange range_of(uint32_t total, uint32_t size, uint32_t rank) noexcept {
  if (total >= size) return {rank * (total / size), total / size};
  return {rank / (size / total), 1};
}

// The source rank that serves `head` to a destination. Of the copies of a head, the one whose place
// among its copies is that of the destination among those who want the head.
uint32_t source_of(const TpPair& pair, uint32_t head, uint32_t destination_rank) noexcept {
  const uint32_t total = pair.total_heads;
  if (pair.source_size <= total) return head / (total / pair.source_size);
  const uint32_t copies = pair.source_size / total;
  if (pair.destination_size <= total) {
    // One destination has the head; spread neighbours over the copies by their rank.
    return head * copies + destination_rank % copies;
  }
  const uint32_t wanted = pair.destination_size / total;
  const uint32_t place = destination_rank % wanted;
  return head * copies + (wanted >= copies ? place / (wanted / copies) : place * (copies / wanted));
}

Status check_pair(const TpPair& pair) {
  SL_TRY(check("source tp_size", pair.total_heads, pair.source_size));
  SL_TRY(check("destination tp_size", pair.total_heads, pair.destination_size));
  if (pair.source_size % pair.destination_size == 0 ||
      pair.destination_size % pair.source_size == 0) {
    return {};
  }
  return wrong(
      fmt::format("source tp_size {} and destination tp_size {}: neither divides the other",
                  pair.source_size, pair.destination_size));
}

std::vector<HeadRoute> destination_routes(const TpPair& pair, uint32_t rank) {
  std::vector<HeadRoute> out;
  const HeadRange mine = range_of(pair.total_heads, pair.destination_size, rank);
  for (uint32_t i = 0; i < mine.count; ++i) {
    const uint32_t head = mine.first + i;
    const uint32_t source = source_of(pair, head, rank);
    const uint32_t first = range_of(pair.total_heads, pair.source_size, source).first;
    if (!out.empty() && out.back().remote_rank == source) {
      ++out.back().slice.count;
    } else {
      out.push_back({source, {i, head - first, 1}});
    }
  }
  return out;
}

}  // namespace

Result<HeadRange> heads_of_rank(uint32_t total_heads, uint32_t tp_size, uint32_t tp_rank) {
  SL_TRY(check("tp_size", total_heads, tp_size));
  if (tp_rank >= tp_size)
    return wrong(fmt::format("tp_rank is {}, tp_size is {}", tp_rank, tp_size));
  return range_of(total_heads, tp_size, tp_rank);
}

Result<std::vector<HeadRoute>> routes_to(const TpPair& pair, uint32_t destination_rank) {
  SL_TRY(check_pair(pair));
  if (destination_rank >= pair.destination_size) {
    return wrong(fmt::format("destination rank is {}, its tp_size is {}", destination_rank,
                             pair.destination_size));
  }
  return destination_routes(pair, destination_rank);
}

Result<std::vector<HeadRoute>> routes_from(const TpPair& pair, uint32_t source_rank) {
  SL_TRY(check_pair(pair));
  if (source_rank >= pair.source_size) {
    return wrong(
        fmt::format("source rank is {}, its tp_size is {}", source_rank, pair.source_size));
  }
  std::vector<HeadRoute> out;
  for (uint32_t rank = 0; rank < pair.destination_size; ++rank) {
    for (const HeadRoute& route : destination_routes(pair, rank)) {
      if (route.remote_rank != source_rank) continue;
      out.push_back({rank, {route.slice.remote_first, route.slice.local_first, route.slice.count}});
    }
  }
  return out;
}

}  // namespace stagelink::block_layout
