#include "cli/replay/rank/ranges.h"

namespace stagelink::cli::replay {

BlockRanges::BlockRanges(const Layout& layout, uint32_t remote_pool_blocks,
                         std::span<const uint32_t> local_blocks,
                         std::span<const uint32_t> remote_blocks) {
  Layout remote = layout;
  remote.pool_blocks = remote_pool_blocks;
  const size_t count = layout.planes() * local_blocks.size();
  local_.reserve(count);
  remote_.reserve(count);
  for (uint32_t plane = 0; plane < layout.planes(); ++plane) {
    for (size_t i = 0; i < local_blocks.size(); ++i) {
      local_.push_back(layout.offset(plane, local_blocks[i]));
      remote_.push_back(remote.offset(plane, remote_blocks[i]));
    }
  }
  sizes_.assign(count, layout.piece_bytes());
  bytes_ = count * layout.piece_bytes();
}

}  // namespace stagelink::cli::replay
