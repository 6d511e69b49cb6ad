#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/endpoint.h"
#include "connector/block_layout/head_map.h"
#include "stagelink/result.h"

// Which ranks of another engine a rank of ours works with, and where they listen.
namespace stagelink::moriio {

// Another engine, as a request speaks of it.
struct PeerAddress {
  std::string host;
  std::vector<std::string> hosts;  // One for each pod; empty: `host`.
  uint32_t handshake_port = 0;
  uint32_t notify_port = 0;
  uint32_t tp_size = 0;  // 0: as ours.
  uint32_t dp_rank = 0;  // Global.
  uint32_t dp_size_local = 0;
};

// This rank, and what its model has.
struct OwnPlace {
  uint32_t tp_rank = 0;
  uint32_t tp_size = 1;
  uint32_t total_kv_heads = 1;
};

struct PeerRoute {
  uint32_t tp_rank = 0;
  Endpoint handshake;
  Endpoint notify;
  std::optional<block_layout::HeadSlice> slice;  // Absent: all heads, equal on both sides.
};

// Whom this rank takes from (consumer) or gives to (producer). A producer that nobody takes from
// has none. Errors: invalid_argument for sizes that do not divide one another; those of rank_port.
Result<std::vector<PeerRoute>> routes_as_consumer(const OwnPlace& own, const PeerAddress& peer);
Result<std::vector<PeerRoute>> routes_as_producer(const OwnPlace& own, const PeerAddress& peer);
// Every producer rank that waits for a word of this consumer rank: those above and, where a model's
// heads have copies, the ranks whose copies nobody takes.
Result<std::vector<PeerRoute>> ranks_to_release(const OwnPlace& own, const PeerAddress& peer);

}  // namespace stagelink::moriio
