#include "cli/bench/rig/work_unit.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/random.h"

namespace stagelink::cli::bench {

namespace {

uint64_t content_word(uint64_t index, uint64_t salt) noexcept {
  return (index + salt) * 0x9e3779b97f4a7c15ULL;
}

// The first steps of a Fisher-Yates shuffle.
std::vector<uint64_t> draw_offsets(const Shape& shape, uint64_t seed) {
  std::vector<uint64_t> slots(shape.slots());
  std::iota(slots.begin(), slots.end(), uint64_t{0});
  SplitMix64 random(seed);
  for (size_t i = 0; i < shape.blocks; ++i) {
    std::swap(slots[i], slots[i + random.below(slots.size() - i)]);
  }
  slots.resize(shape.blocks);
  for (uint64_t& slot : slots) slot *= shape.block_bytes;
  return slots;
}

}  // namespace

uint64_t Shape::slots() const noexcept {
  return block_bytes == 0 ? 0 : std::min(most_slots, kRegionBytes / block_bytes);
}

Status check_shape(const Shape& shape) {
  if (shape.block_bytes == 0 || shape.block_bytes % 8 != 0 || shape.block_bytes > kRegionBytes) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("block size {}: must be a multiple of 8, at most {}",
                              shape.block_bytes, kRegionBytes));
  }
  if (shape.blocks == 0 || shape.blocks > shape.slots()) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("{} blocks of {} bytes: must be 1 to {}, the slots of a region",
                              shape.blocks, shape.block_bytes, shape.slots()));
  }
  return Status();
}

Picks make_picks(const Shape& shape, uint64_t seed) {
  SplitMix64 random(seed);
  Picks picks;
  picks.local = draw_offsets(shape, random.next());
  picks.remote = draw_offsets(shape, random.next());
  picks.sizes.assign(shape.blocks, shape.block_bytes);
  return picks;
}

void fill_content(std::span<std::byte> memory, uint64_t salt) noexcept {
  for (size_t at = 0; at + 8 <= memory.size(); at += 8) {
    const uint64_t word = content_word(at / 8, salt);
    std::memcpy(memory.data() + at, &word, 8);
  }
}

bool holds_content(std::span<const std::byte> piece, uint64_t source_offset,
                   uint64_t salt) noexcept {
  uint64_t difference = 0;
  for (size_t at = 0; at + 8 <= piece.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, piece.data() + at, 8);
    difference |= word ^ content_word((source_offset + at) / 8, salt);
  }
  return difference == 0;
}

}  // namespace stagelink::cli::bench
