#include "connector/moriio/rank/rank_cache.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace stagelink::moriio {
namespace {

using block_layout::BlockGeometry;
using block_layout::CacheTensor;

// The axis that counts heads: the one behind the blocks in a cache of rows.
constexpr size_t kHeadAxis = 1;

CacheTensor resized(const CacheTensor& tensor, uint32_t heads, uint64_t num_blocks) {
  CacheTensor other = tensor;
  other.shape[0] = num_blocks;
  other.shape[kHeadAxis] = heads;
  std::vector<size_t> order(tensor.shape.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return tensor.strides[a] < tensor.strides[b]; });
  uint64_t dense_here = 1;
  uint64_t dense_there = 1;
  for (const size_t axis : order) {
    const uint64_t gap = tensor.strides[axis] - std::min(tensor.strides[axis], dense_here);
    other.strides[axis] = dense_there + gap;
    dense_here = tensor.strides[axis] * tensor.shape[axis];
    dense_there = other.strides[axis] * other.shape[axis];
  }
  return other;
}

}  // namespace

Result<BlockGeometry> geometry_with(const CacheLayer& layer, uint32_t heads, uint64_t num_blocks) {
  SL_ASSIGN(const BlockGeometry ours, block_layout::find_geometry(layer.tensor, layer.spec));
  if (heads == ours.heads || layer.spec.mla) return block_layout::with_num_blocks(ours, num_blocks);
  if (ours.layout != block_layout::Layout::kRows) {
    return Status(Reason::kIncompatible,
                  "layer " + layer.name + ": heads can be sliced only in a cache of rows");
  }
  block_layout::LayerSpec spec = layer.spec;
  spec.num_kv_heads = heads;
  return block_layout::find_geometry(resized(layer.tensor, heads, num_blocks), spec);
}

Result<PeerMetadata> metadata_of(const RankCache& cache, std::vector<std::byte> engine_desc,
                                 const std::string& incarnation) {
  PeerMetadata metadata;
  AgentMetadata& agent = metadata.agent;
  agent.engine_id = cache.engine_id;
  agent.agent_metadata = std::move(engine_desc);
  agent.attn_backend_name = cache.attn_backend_name;
  agent.extras.version = kMessageVersion;
  agent.extras.incarnation = incarnation;
  agent.extras.compat_hash = block_layout::compat_hash(cache.compat);
  agent.extras.tp_rank = cache.tp_rank;
  agent.extras.tp_size = cache.tp_size;
  agent.compat = cache.compat;
  for (const CacheLayer& layer : cache.layers) {
    SL_ASSIGN(const BlockGeometry geometry, block_layout::find_geometry(layer.tensor, layer.spec));
    if (agent.num_blocks == 0) {
      agent.num_blocks = geometry.num_blocks;
      agent.block_len = geometry.block_len();
    } else if (geometry.num_blocks != agent.num_blocks) {
      agent.layer_num_blocks[layer.name] = geometry.num_blocks;
    }
    const MemoryDesc& memory = cache.memories[layer.memory];
    agent.kv_caches_base_addr.push_back(memory.data + layer.base);
    metadata.layers.push_back({layer.name, {memory.pack()}});
  }
  return metadata;
}

}  // namespace stagelink::moriio
