#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "stagelink/range_list.h"
#include "stagelink/status.h"

namespace stagelink::cli::bench {

inline constexpr uint64_t kRegionBytes = uint64_t{1} << 30;
inline constexpr uint64_t kMostSlots = 65536;

// What one repetition moves: `blocks` pieces of `block_bytes`.
struct Shape {
  uint64_t block_bytes = 0;
  uint64_t blocks = 0;
  uint64_t most_slots = kMostSlots;

  uint64_t bytes() const noexcept { return block_bytes * blocks; }
  // A region is cut into packed slots of the block size, at most `most_slots` of them.
  uint64_t slots() const noexcept;
};

// Errors: invalid_argument, naming the bound.
Status check_shape(const Shape& shape);

// The ranges of one repetition: distinct random slots, drawn apart for each side. The same shape
// and seed give the same picks in every process.
struct Picks {
  std::vector<uint64_t> local;
  std::vector<uint64_t> remote;
  std::vector<uint64_t> sizes;

  RangeList ranges() const noexcept {
    return {.local_offsets = local,
            .remote_offsets = remote,
            .sizes = sizes,
            .local_regions = {},
            .remote_regions = {}};
  }
};
Picks make_picks(const Shape& shape, uint64_t seed);

// Memory of known content: the 8-byte word at an offset is a function of the offset and a salt, so
// that a block which came from the wrong place or from a stale copy is told apart.
void fill_content(std::span<std::byte> memory, uint64_t salt) noexcept;
// Whether `piece` holds what a filled region holds from `source_offset` on (a multiple of 8).
bool holds_content(std::span<const std::byte> piece, uint64_t source_offset,
                   uint64_t salt) noexcept;

}  // namespace stagelink::cli::bench
