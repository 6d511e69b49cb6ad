#pragma once

#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "connector/block_layout/cache_geometry.h"

namespace stagelink::block_layout {

// A cache as arrays see it: every row has an address that is found by indexing the tensor, without
// the geometry that is under test.
struct CacheModel {
  Layout layout = Layout::kKvFirst;
  bool heads_before_tokens = false;
  uint64_t blocks = 4;
  uint32_t kernel_per_block = 1;
  uint32_t kernel_tokens = 4;
  uint32_t heads = 2;
  uint32_t row_bytes = 6;  // Elements are bytes.
  uint64_t padding = 0;    // Bytes behind each kernel block.

  uint32_t planes() const { return layout == Layout::kRows ? 1 : 2; }
  uint32_t tokens() const { return kernel_tokens * kernel_per_block; }
  uint64_t kernel_blocks() const { return blocks * kernel_per_block; }
  uint64_t plane_bytes() const { return uint64_t{kernel_tokens} * heads * row_bytes; }
  uint64_t kernel_stride() const {
    return plane_bytes() * (layout == Layout::kInterleaved ? 2 : 1) + padding;
  }
  uint64_t plane_stride() const {
    return layout == Layout::kInterleaved ? plane_bytes() : kernel_stride() * kernel_blocks();
  }
  uint64_t bytes() const {
    return kernel_stride() * kernel_blocks() * (layout == Layout::kKvFirst ? 2 : 1);
  }

  CacheTensor tensor() const {
    const uint64_t token = heads_before_tokens ? row_bytes : uint64_t{heads} * row_bytes;
    const uint64_t head = heads_before_tokens ? uint64_t{kernel_tokens} * row_bytes : row_bytes;
    CacheTensor out{.element_bytes = 1};
    if (layout == Layout::kRows) {  // Named heads first, wherever they lie.
      out.shape = {kernel_blocks(), heads, kernel_tokens, row_bytes};
      out.strides = {kernel_stride(), head, token, 1};
      return out;
    }
    out.shape = {kernel_blocks(), 2};
    out.strides = {kernel_stride(), plane_stride()};
    if (layout == Layout::kKvFirst) {
      std::swap(out.shape[0], out.shape[1]);
      std::swap(out.strides[0], out.strides[1]);
    }
    const std::vector<uint64_t> inner_shape = heads_before_tokens
                                                  ? std::vector<uint64_t>{heads, kernel_tokens}
                                                  : std::vector<uint64_t>{kernel_tokens, heads};
    out.shape.insert(out.shape.end(), inner_shape.begin(), inner_shape.end());
    out.shape.push_back(row_bytes);
    out.strides.push_back(heads_before_tokens ? head : token);
    out.strides.push_back(heads_before_tokens ? token : head);
    out.strides.push_back(1);
    return out;
  }

  LayerSpec spec() const {
    LayerSpec out{.block_size = tokens(), .num_kv_heads = heads, .layout = layout};
    out.axes = heads_before_tokens ? RowAxes::kHeadsTokens : RowAxes::kTokensHeads;
    if (layout == Layout::kRows) {
      out.num_states = tokens();
      out.content_bytes = row_bytes;
    } else {
      out.head_size = row_bytes;
    }
    return out;
  }

  // By indexing the tensor's axes one by one.
  uint64_t address(uint64_t block, uint32_t plane, uint32_t token, uint32_t head) const {
    const CacheTensor t = tensor();
    const uint64_t kernel_block = block * kernel_per_block + token / kernel_tokens;
    const uint64_t inner = token % kernel_tokens;
    std::vector<uint64_t> index;
    switch (layout) {
      case Layout::kKvFirst: index = {plane, kernel_block}; break;
      case Layout::kInterleaved: index = {kernel_block, plane}; break;
      case Layout::kRows:
      case Layout::kAuto: index = {kernel_block}; break;
    }
    const bool heads_named_first = layout == Layout::kRows || heads_before_tokens;
    index.push_back(heads_named_first ? head : inner);
    index.push_back(heads_named_first ? inner : head);
    return std::inner_product(index.begin(), index.end(), t.strides.begin(), uint64_t{0});
  }
};

// The byte that stands for one place of the whole model's cache: heads counted over all ranks.
inline uint8_t golden(uint64_t block, uint32_t plane, uint32_t token, uint32_t head,
                      uint32_t byte) {
  uint64_t x = block * 1000003 + plane * 10007 + token * 1009 + head * 101 + byte + 1;
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdU;
  x ^= x >> 33;
  return static_cast<uint8_t>(x | 1);  // Never zero: zero is "not written".
}

}  // namespace stagelink::block_layout
