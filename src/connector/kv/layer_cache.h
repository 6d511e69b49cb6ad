#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "connector/block_layout/cache_geometry.h"
#include "connector/kv/payload_header.h"
#include "stagelink/result.h"

namespace stagelink::kv {

// A tensor where its owner has it; strides in bytes, of any sign.
struct StridedTensor {
  const std::byte* first = nullptr;
  const KvDtype* dtype = nullptr;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
};

// Keys or values of one layer as [blocks, tokens, heads, ...], however they lie.
using PagedPlane = StridedTensor;

// One layer. Without keys: the layer has no cache and is named as missing. Without values: MLA.
struct LayerPlanes {
  std::optional<PagedPlane> keys;
  std::optional<PagedPlane> values;
};

// How the tensor of a layer is to be read.
struct LayerReading {
  uint32_t block_size = 0;  // Tokens of a block.
  bool mla = false;         // [blocks, tokens, latent], keys alone.
  // kKvFirst [2, blocks, tokens, heads, dim], kInterleaved [blocks, 2, tokens, heads, dim], kRows
  // [blocks, heads, tokens, 2 * dim]. kAuto takes the one that fits, and refuses two that do.
  block_layout::Layout layout = block_layout::Layout::kAuto;
};

// Which axis of the tensor counts blocks. Errors as below.
Result<size_t> block_axis(const StridedTensor& layer, const LayerReading& reading);

// Errors: invalid_argument names the shape, and what it could be.
Result<LayerPlanes> planes_of(const StridedTensor& layer, const LayerReading& reading);
// Of a pair that lies apart, each [blocks, tokens, heads, ...].
Result<LayerPlanes> planes_of(const StridedTensor& keys, const StridedTensor& values,
                              const LayerReading& reading);

}  // namespace stagelink::kv
