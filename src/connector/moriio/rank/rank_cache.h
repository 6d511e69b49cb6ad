#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "connector/block_layout/cache_geometry.h"
#include "connector/block_layout/compatibility.h"
#include "connector/moriio/io/memory_desc.h"
#include "connector/moriio/wrapper/handshake.h"

namespace stagelink::moriio {

// One layer of a rank's cache.
struct CacheLayer {
  std::string name;
  uint32_t group = 0;   // Which of a request's block lists holds its blocks.
  uint32_t memory = 0;  // Index of the memory that it lies in.
  uint64_t base = 0;    // Where it begins in that memory.
  block_layout::CacheTensor tensor;
  block_layout::LayerSpec spec;
};

// What one rank keeps of every request: registered memory, and layers in it. Layers may share
// bytes: those of different groups never use the same block.
struct RankCache {
  std::vector<MemoryDesc> memories;
  std::vector<CacheLayer> layers;  // In an order that both sides share.
  uint32_t groups = 1;
  uint32_t total_kv_heads = 1;  // Of the model; 1 with MLA.
  uint32_t tp_rank = 0;
  uint32_t tp_size = 1;
  std::string engine_id;
  std::string attn_backend_name;
  block_layout::Description compat;
};

// What a rank with this cache tells its peers.
Result<PeerMetadata> metadata_of(const RankCache& cache, std::vector<std::byte> engine_desc,
                                 const std::string& incarnation);

// The geometry of a layer on a rank that has other heads and blocks: the axes lie in the same
// order, and those that are dense here are dense there. Errors: those of find_geometry.
Result<block_layout::BlockGeometry> geometry_with(const CacheLayer& layer, uint32_t heads,
                                                  uint64_t num_blocks);

}  // namespace stagelink::moriio
