#include "cli/replay/rank/pool_memory.h"

#include <utility>

namespace stagelink::cli::replay {

Result<PoolMemory> PoolMemory::create(Engine& engine, const RankConfig& config) {
  const uint64_t bytes = config.layout.pool_bytes();
  // Decode's pool is written by prefill, prefill's only read by decode.
  const Access access = config.role == Role::kDecode ? Access::kReadWrite : Access::kReadOnly;
  if (config.initiates() || !config.maps()) {
    SL_ASSIGN(auto memory, HugeMemory::create(bytes));
    SL_ASSIGN(auto region, engine.register_memory(memory.bytes().data(), bytes, {access}));
    return PoolMemory(std::move(memory), std::move(region));
  }
  AllocateOptions options;
  options.huge_pages = Effort::kTry;
  options.access = access;
  SL_ASSIGN(auto region, engine.allocate(bytes, options));
  return PoolMemory(std::nullopt, std::move(region));
}

}  // namespace stagelink::cli::replay
