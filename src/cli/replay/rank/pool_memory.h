#pragma once

#include <optional>
#include <span>

#include "cli/replay/rank/huge_memory.h"
#include "cli/replay/rank_config.h"
#include "stagelink/engine.h"

namespace stagelink::cli::replay {

// The memory of a rank's pool and its registration: shareable memory of the engine where the peer
// initiates the transfers, so that it can map it; private memory where this rank does, or where
// nothing is mapped.
//
// Thread-safety: one thread.
class PoolMemory {
 public:
  static Result<PoolMemory> create(Engine& engine, const RankConfig& config);

  std::span<std::byte> bytes() const noexcept { return region_.bytes(); }
  const Region& region() const noexcept { return region_; }

 private:
  PoolMemory(std::optional<HugeMemory> memory, Region region)
      : memory_(std::move(memory)), region_(std::move(region)) {}

  std::optional<HugeMemory> memory_;  // Outlives the region.
  Region region_;
};

}  // namespace stagelink::cli::replay
