#include "cli/replay/rank/limit_probe.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "cli/replay/workload/block_content.h"

namespace stagelink::cli::replay {

Result<LimitProbe> LimitProbe::create(const Layout& layout) {
  SL_ASSIGN(auto from, HugeMemory::create(layout.pool_bytes()));
  SL_ASSIGN(auto to, HugeMemory::create(layout.pool_bytes()));
  return LimitProbe(layout, std::move(from), std::move(to));
}

Duration LimitProbe::measure(std::span<const Block> blocks) {
  for (const Block& block : blocks) {
    fill_block(layout_, from_.bytes(), block.key, block.from % layout_.pool_blocks);
  }
  const auto start = std::chrono::steady_clock::now();
  for (uint32_t plane = 0; plane < layout_.planes(); ++plane) {
    for (const Block& block : blocks) {
      const uint64_t to = layout_.offset(plane, block.to % layout_.pool_blocks);
      const uint64_t from = layout_.offset(plane, block.from % layout_.pool_blocks);
      std::memcpy(to_.bytes().data() + to, from_.bytes().data() + from, layout_.piece_bytes());
    }
  }
  return std::chrono::steady_clock::now() - start;
}

}  // namespace stagelink::cli::replay
