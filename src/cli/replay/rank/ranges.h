#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cli/replay/workload/layout.h"
#include "stagelink/range_list.h"

namespace stagelink::cli::replay {

// The byte ranges of a batch that moves whole blocks: one range for each piece, plane by plane.
// Block local_blocks[i] here and remote_blocks[i] there are the same block.
//
// Thread-safety: a value.
class BlockRanges {
 public:
  BlockRanges(const Layout& layout, uint32_t remote_pool_blocks,
              std::span<const uint32_t> local_blocks, std::span<const uint32_t> remote_blocks);

  RangeList list() const noexcept { return {local_, remote_, sizes_, {}, {}}; }
  uint64_t bytes() const noexcept { return bytes_; }

 private:
  std::vector<uint64_t> local_;
  std::vector<uint64_t> remote_;
  std::vector<uint64_t> sizes_;
  uint64_t bytes_ = 0;
};

}  // namespace stagelink::cli::replay
