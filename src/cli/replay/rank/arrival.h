#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cli/replay/rank/pair_message.h"
#include "cli/replay/rank_config.h"

namespace stagelink::cli::replay {

// A block that has just arrived here.
struct ArrivedBlock {
  uint32_t position = 0;  // In the list of its request.
  BlockKey key;
  uint32_t block = 0;
  uint64_t checksum = 0;  // As its owner says.
};

struct ArrivalReport {
  std::vector<uint32_t> bad_checksums;  // Positions: to be moved once more.
  std::vector<uint32_t> wrong;          // Positions whose bytes are not the content's.
  std::string first_wrong;              // Where the first of them differs.
  uint64_t verified = 0;                // Blocks of which every byte was compared and right.
};

// Compares what arrived with its checksums, if they are on, then with the content function, as far
// as the configuration asks. Content is not compared where the checksum was wrong.
ArrivalReport check_arrived(const RankConfig& config, std::span<const std::byte> pool,
                            std::span<const ArrivedBlock> blocks);

}  // namespace stagelink::cli::replay
