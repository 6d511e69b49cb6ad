#include "cli/replay/rank/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace stagelink::cli::replay {

uint64_t block_checksum(const Layout& layout, std::span<const std::byte> pool, uint32_t block) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (uint32_t plane = 0; plane < layout.planes(); ++plane) {
    const auto piece = pool.subspan(layout.offset(plane, block), layout.piece_bytes());
    XXH3_64bits_update(&state, piece.data(), piece.size());
  }
  return XXH3_64bits_digest(&state);
}

}  // namespace stagelink::cli::replay
