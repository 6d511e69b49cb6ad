#pragma once

#include <cstddef>
#include <cstdint>

#include "cli/replay/workload/model.h"
#include "stagelink/result.h"

namespace stagelink::cli::replay {

// Where the KV cache of a pool lies. A block holds block_tokens tokens of one prefix; in each plane
// (layer x part, part being K, V or the latent) it has one piece: all tokens' vectors of all heads,
// token by token. Planes follow each other, and in a plane the pieces of block 0, 1, 2 ...:
//
//   plane 0 (layer 0, K): | block 0 | block 1 | ... | block pool_blocks - 1 |
//   plane 1 (layer 0, V): | block 0 | ...
//   plane 2 (layer 1, K): ...
//
// So a block is `planes` pieces that lie far apart, as in the caches of real engines.
//
// Thread-safety: a value.
struct Layout {
  uint32_t layers = 1;
  uint32_t parts = 2;
  uint32_t heads = 8;
  uint32_t vector_bytes = 256;  // One token, one head.
  uint32_t block_tokens = 16;
  uint32_t pool_blocks = 0;

  uint32_t planes() const noexcept { return layers * parts; }
  uint64_t token_bytes() const noexcept { return uint64_t{heads} * vector_bytes; }
  uint64_t piece_bytes() const noexcept { return block_tokens * token_bytes(); }
  uint64_t block_bytes() const noexcept { return planes() * piece_bytes(); }
  uint64_t pool_bytes() const noexcept { return pool_blocks * block_bytes(); }
  uint64_t offset(uint32_t plane, uint32_t block) const noexcept {
    return (uint64_t{plane} * pool_blocks + block) * piece_bytes();
  }
  friend bool operator==(const Layout&, const Layout&) = default;
};

// Errors: invalid_argument names block_tokens (a power of two from 1 to 512) or a vector whose
// bytes are no multiple of 8. pool_blocks is left at 0.
Result<Layout> make_layout(const ModelGeometry& model, uint32_t layers, uint32_t element_bytes,
                           uint32_t block_tokens);

}  // namespace stagelink::cli::replay
