#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace stagelink::cli::replay {

// Names the bytes of one piece: those of `id` from token `first_token` on, in one plane.
struct PieceKey {
  uint64_t id = 0;
  uint32_t plane = 0;        // layer * parts + part
  uint32_t first_token = 0;  // Within the id.
  uint64_t token_bytes = 0;
};

// The content function. Invariants:
//  1. Word w of the bytes of (id, plane) is f(seed(id, plane) + w * odd), f a bijection of 64 bits.
//     So within an (id, plane) no two words are equal, whichever tokens and heads they belong to.
//  2. seed() mixes id and plane to 64 bits, so another id, layer or part gives other words but for
//     an accident of 2^-64 for each pair of places.
//  3. It is shifts, adds and xors only, which every processor's vector unit has: filling and
//     checking run at memory speed.
// `bytes` is a multiple of 8 long.
void fill_piece(const PieceKey& key, std::span<std::byte> bytes) noexcept;

// The offset of the first word that is not what fill_piece() writes; empty if all are.
std::optional<size_t> find_wrong_word(const PieceKey& key,
                                      std::span<const std::byte> bytes) noexcept;

}  // namespace stagelink::cli::replay
