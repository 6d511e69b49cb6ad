#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stagelink/result.h"

// Where the bytes of a block lie in the cache of one layer. Told from the tensor's shape and
// strides and from what the engine says of the layer; never guessed: a tensor that can be read in
// two ways that move other bytes is refused until the layout is named.
namespace stagelink::block_layout {

// The order of the axes of a cache.
enum class Layout : uint8_t {
  kAuto,         // Find out; refused where it is not certain.
  kKvFirst,      // [2, blocks, tokens, heads, dim] or [2, blocks, heads, tokens, dim]
  kInterleaved,  // [blocks, 2, tokens, heads, dim] or [blocks, 2, heads, tokens, dim]
  kRows,         // [blocks, heads, tokens, content]; content is K and V, or the latent of MLA
};
// "auto", "kv_first", "interleaved", "rows".
std::string_view layout_name(Layout layout) noexcept;
Result<Layout> parse_layout(std::string_view name);

// Whether a tensor names the axis of tokens or that of heads first; kRows always names heads first.
enum class RowAxes : uint8_t { kAuto, kTokensHeads, kHeadsTokens };

// A tensor as its owner describes it: sizes and strides in elements.
struct CacheTensor {
  std::vector<uint64_t> shape;
  std::vector<uint64_t> strides;
  uint32_t element_bytes = 0;
};

// What the engine knows of the layer apart from the tensor. 0: not known.
struct LayerSpec {
  bool mla = false;         // One latent row for a token: kRows alone fits.
  uint32_t block_size = 0;  // Tokens of one block of the scheduler; a multiple of the tensor's own.
  uint32_t num_kv_heads = 0;
  uint32_t head_size = 0;
  uint32_t num_states = 0;     // kRows: rows of one block; 0: one for each token.
  uint32_t content_bytes = 0;  // kRows: of one head's row for one token.
  Layout layout = Layout::kAuto;
  RowAxes axes = RowAxes::kAuto;
  // The bytes within a block have an order that only the owner's kernels know (caches of CPUs are
  // packed for their instruction set): blocks move whole or not at all.
  bool opaque = false;
};

// Address of one head's row for one token of one block, in bytes from the tensor's first element:
//   block * block_stride + plane * plane_stride + (token / kernel_tokens) * kernel_stride
//     + (token % kernel_tokens) * token_stride + head * head_stride
struct BlockGeometry {
  Layout layout = Layout::kAuto;
  uint64_t num_blocks = 0;  // Blocks of the scheduler.
  uint64_t block_stride = 0;
  uint32_t planes = 1;  // 2: K and V apart.
  uint64_t plane_stride = 0;
  // K and V are the halves of the tensor, so the plane stride of a cache with other num_blocks
  // differs: it is block_stride * num_blocks.
  bool halves = false;
  uint32_t kernel_tokens = 0;
  uint64_t kernel_stride = 0;
  uint32_t tokens = 0;  // Rows of one head in one block of the scheduler.
  uint64_t token_stride = 0;
  uint32_t heads = 0;
  uint64_t head_stride = 0;
  uint64_t row_bytes = 0;
  bool heads_known = true;  // Tokens and heads can be told apart; else blocks move whole.
  bool opaque = false;
  friend bool operator==(const BlockGeometry&, const BlockGeometry&) = default;

  uint64_t plane_bytes() const noexcept { return uint64_t{tokens} * heads * row_bytes; }
  // Of K or V where they lie apart, else of the block: what a peer of vLLM calls block_len.
  uint64_t block_len() const noexcept;
  // From the first byte to behind the last one: what a registration must cover.
  uint64_t extent() const noexcept;
  // "kv_first tokens,heads 16x8x256 kernel 16": equal texts, equal order of bytes in a block.
  std::string text() const;
};

// Errors: incompatible ("layout mismatch: ...") if the tensor fits no layout, or two;
// invalid_argument (not_contiguous) if rows overlap or a row is not contiguous; invalid_argument
// (overflow).
Result<BlockGeometry> find_geometry(const CacheTensor& tensor, const LayerSpec& spec);

// The geometry of a peer whose cache differs in the number of blocks alone.
Result<BlockGeometry> with_num_blocks(const BlockGeometry& ours, uint64_t num_blocks);

}  // namespace stagelink::block_layout
