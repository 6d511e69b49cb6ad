#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cli/replay/workload/layout.h"

namespace stagelink::cli::replay {

// XXH3 (64 bits) of a block's pieces in plane order. `pool` is the whole pool.
uint64_t block_checksum(const Layout& layout, std::span<const std::byte> pool, uint32_t block);

}  // namespace stagelink::cli::replay
