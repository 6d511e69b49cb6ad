#pragma once

#include <cstdint>
#include <vector>

#include "stagelink/result.h"

// Which KV heads are on which rank of tensor parallelism, and from whom a rank takes them when the
// two sides have other sizes. With fewer heads than ranks each head has copies; every head of a
// destination has exactly one source.
namespace stagelink::block_layout {

struct HeadSlice {
  uint32_t local_first = 0;
  uint32_t remote_first = 0;
  uint32_t count = 0;
  friend bool operator==(const HeadSlice&, const HeadSlice&) = default;
};

// Heads of one rank, of `total`. Errors: invalid_argument if neither divides the other.
struct HeadRange {
  uint32_t first = 0;
  uint32_t count = 0;
  friend bool operator==(const HeadRange&, const HeadRange&) = default;
};
Result<HeadRange> heads_of_rank(uint32_t total_heads, uint32_t tp_size, uint32_t tp_rank);

// A part of the heads, and the remote rank that has or gets it.
struct HeadRoute {
  uint32_t remote_rank = 0;
  HeadSlice slice;
  friend bool operator==(const HeadRoute&, const HeadRoute&) = default;
};

struct TpPair {
  uint32_t total_heads = 0;
  uint32_t source_size = 0;
  uint32_t destination_size = 0;
};

// What a destination rank pulls: every one of its heads once, from the fewest source ranks. Sources
// with copies share the destinations evenly. For equal sizes: all heads from the same rank.
// Errors: invalid_argument names the sizes that do not divide one another.
Result<std::vector<HeadRoute>> routes_to(const TpPair& pair, uint32_t destination_rank);
// What a source rank pushes: the same pairs seen from the other side. May be empty.
Result<std::vector<HeadRoute>> routes_from(const TpPair& pair, uint32_t source_rank);

}  // namespace stagelink::block_layout
