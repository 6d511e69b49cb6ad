#include "connector/block_layout/cache_geometry.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"
#include "connector/block_layout/checked.h"

namespace stagelink::block_layout {
namespace {

constexpr std::array<std::string_view, 4> kLayouts = {"auto", "kv_first", "interleaved", "rows"};
constexpr uint64_t kMaxBlocks = uint64_t{1} << 31;
constexpr uint64_t kMaxPerBlock = uint64_t{1} << 20;  // Tokens, heads.
constexpr size_t kNoAxis = 8;

Status mismatch(const CacheTensor& tensor, std::string_view why) {
  return Status(Reason::kIncompatible,
                fmt::format("layout mismatch: a cache of shape [{}], strides [{}]: {}",
                            fmt::join(tensor.shape, ", "), fmt::join(tensor.strides, ", "), why));
}

// A way to read the tensor: which axis is what.
struct Reading {
  Layout layout = Layout::kAuto;
  size_t blocks = 0;
  size_t planes = kNoAxis;
  size_t tokens = 0;
  size_t heads = 0;
  size_t content = 0;
};

constexpr std::array<Reading, 5> kReadings = {{
    {Layout::kKvFirst, 1, 0, 2, 3, 4},
    {Layout::kKvFirst, 1, 0, 3, 2, 4},
    {Layout::kInterleaved, 0, 1, 2, 3, 4},
    {Layout::kInterleaved, 0, 1, 3, 2, 4},
    {Layout::kRows, 0, kNoAxis, 2, 1, 3},
}};

bool is_or_unknown(uint64_t value, uint64_t expected) noexcept {
  return expected == 0 || value == expected;
}

uint32_t rows_per_block(const Reading& reading, const LayerSpec& spec) noexcept {
  return reading.layout == Layout::kRows && spec.num_states != 0 ? spec.num_states
                                                                 : spec.block_size;
}

bool fits(const Reading& reading, const CacheTensor& tensor, const LayerSpec& spec) noexcept {
  const auto& shape = tensor.shape;
  const bool rows = reading.layout == Layout::kRows;
  if (spec.layout != Layout::kAuto && spec.layout != reading.layout) return false;
  if (shape.size() != (rows ? 4U : 5U) || (spec.mla && !rows)) return false;
  const bool heads_first = reading.heads < reading.tokens;
  if (spec.axes != RowAxes::kAuto && !rows && heads_first != (spec.axes == RowAxes::kHeadsTokens)) {
    return false;
  }
  if (reading.planes != kNoAxis && shape[reading.planes] != 2) return false;
  const uint64_t tokens = shape[reading.tokens];
  if (tokens == 0 || rows_per_block(reading, spec) % tokens != 0) return false;
  if (!is_or_unknown(shape[reading.heads], spec.num_kv_heads)) return false;
  return rows ? is_or_unknown(shape[reading.content] * tensor.element_bytes, spec.content_bytes)
              : is_or_unknown(shape[reading.content], spec.head_size);
}

// Axes of length 1 have a stride that means nothing.
uint64_t stride_of(const CacheTensor& tensor, size_t axis) noexcept {
  return axis == kNoAxis || tensor.shape[axis] == 1 ? 0
                                                    : tensor.strides[axis] * tensor.element_bytes;
}

// No two rows share a byte: every axis steps over all that the finer ones cover.
bool rows_are_apart(const BlockGeometry& g) {
  struct Axis {
    uint64_t stride;
    uint64_t count;
  };
  std::array<Axis, 5> axes = {{{g.token_stride, g.kernel_tokens},
                               {g.head_stride, g.heads},
                               {g.kernel_stride, g.tokens / g.kernel_tokens},
                               {g.plane_stride, g.planes},
                               {g.block_stride, g.num_blocks}}};
  std::sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) {
    return a.stride != b.stride ? a.stride < b.stride : a.count < b.count;
  });
  uint64_t covered = g.row_bytes;
  for (const Axis& axis : axes) {
    if (axis.count <= 1) continue;
    if (axis.stride < covered) return false;
    covered = std::max(covered, axis.stride * (axis.count - 1) + covered);
  }
  return true;
}

Result<BlockGeometry> geometry_of(const Reading& reading, const CacheTensor& tensor,
                                  const LayerSpec& spec) {
  BlockGeometry g;
  g.layout = reading.layout;
  g.opaque = spec.opaque;
  g.kernel_tokens = static_cast<uint32_t>(tensor.shape[reading.tokens]);
  g.tokens = rows_per_block(reading, spec);
  g.heads = static_cast<uint32_t>(tensor.shape[reading.heads]);
  g.row_bytes = tensor.shape[reading.content] * tensor.element_bytes;
  const uint64_t per_block = g.tokens / g.kernel_tokens;
  const uint64_t kernel_blocks = tensor.shape[reading.blocks];
  if (kernel_blocks % per_block != 0) {
    return mismatch(tensor, fmt::format("{} kernel blocks are no whole blocks of {}", kernel_blocks,
                                        per_block));
  }
  g.num_blocks = kernel_blocks / per_block;
  const uint64_t block_stride = tensor.strides[reading.blocks] * tensor.element_bytes;
  g.kernel_stride = per_block > 1 ? block_stride : 0;
  g.block_stride = block_stride * per_block;
  g.token_stride = stride_of(tensor, reading.tokens);
  g.head_stride = stride_of(tensor, reading.heads);
  if (reading.planes != kNoAxis) {
    g.planes = 2;
    g.plane_stride = stride_of(tensor, reading.planes);
  }
  if (tensor.shape[reading.content] > 1 && tensor.strides[reading.content] != 1) {
    return Status(Reason::kNotContiguous, fmt::format("a row of the cache has the stride {}, not 1",
                                                      tensor.strides[reading.content]));
  }
  // The stride of a single block may be anything.
  if (g.num_blocks == 1) g.block_stride = std::max(g.block_stride, g.block_len());
  g.halves = g.layout == Layout::kKvFirst && g.plane_stride >= g.block_stride * g.num_blocks;
  if (!rows_are_apart(g)) {
    return Status(Reason::kNotContiguous,
                  fmt::format("rows of the cache overlap: shape [{}], strides [{}]",
                              fmt::join(tensor.shape, ", "), fmt::join(tensor.strides, ", ")));
  }
  return g;
}

Status check_tensor(const CacheTensor& tensor, const LayerSpec& spec) {
  const auto wrong = [](std::string message) {
    return Status(Reason::kInvalidArgument, std::move(message));
  };
  if (tensor.shape.size() != tensor.strides.size() || tensor.shape.size() < 4 ||
      tensor.shape.size() > 5) {
    return mismatch(tensor, "it has neither 4 nor 5 axes");
  }
  if (tensor.element_bytes < 1 || tensor.element_bytes > 16) {
    return wrong(fmt::format("element_bytes is {}, not within 1 to 16", tensor.element_bytes));
  }
  if (spec.num_states > kMaxPerBlock) {
    return wrong(fmt::format("num_states is {}, the limit is {}", spec.num_states, kMaxPerBlock));
  }
  if (spec.block_size < 1 || spec.block_size > kMaxPerBlock) {
    return wrong(
        fmt::format("block_size is {}, not within 1 to {}", spec.block_size, kMaxPerBlock));
  }
  Checked checked;
  uint64_t extent = 0;
  for (size_t axis = 0; axis < tensor.shape.size(); ++axis) {
    const uint64_t size = tensor.shape[axis];
    if (size == 0 || size > kMaxBlocks) {
      return mismatch(tensor, fmt::format("axis {} has the length {}", axis, size));
    }
    // The stride of a kernel block is multiplied by those of one block, and one block may stand
    // alone.
    const uint64_t steps = std::max<uint64_t>({size, spec.block_size, spec.num_states});
    const uint64_t reach = checked.mul(
        checked.mul(std::max<uint64_t>(tensor.strides[axis], 1), tensor.element_bytes), steps);
    extent = checked.add(extent, reach);
  }
  if (!checked.ok()) {
    return Status(Reason::kOverflow,
                  fmt::format("a cache of shape [{}], strides [{}] is beyond "
                              "2^62 bytes",
                              fmt::join(tensor.shape, ", "), fmt::join(tensor.strides, ", ")));
  }
  return {};
}

// Both move the same bytes for the same block.
bool same_bytes(const BlockGeometry& a, const BlockGeometry& b) noexcept {
  return a.layout == b.layout && a.num_blocks == b.num_blocks && a.block_stride == b.block_stride &&
         a.plane_stride == b.plane_stride && a.kernel_stride == b.kernel_stride &&
         a.kernel_tokens * uint64_t{a.heads} == b.kernel_tokens * uint64_t{b.heads} &&
         a.plane_bytes() == b.plane_bytes();
}

}  // namespace

std::string_view layout_name(Layout layout) noexcept {
  const auto index = static_cast<size_t>(layout);
  return index < kLayouts.size() ? kLayouts[index] : "unknown";
}

Result<Layout> parse_layout(std::string_view name) {
  const auto found = std::find(kLayouts.begin(), kLayouts.end(), name);
  if (found != kLayouts.end()) return static_cast<Layout>(found - kLayouts.begin());
  return Status(
      Reason::kInvalidArgument,
      fmt::format("layout `{}` is none of {}", to_plain_text(name, 80), fmt::join(kLayouts, ", ")));
}

uint64_t BlockGeometry::block_len() const noexcept {
  const bool whole = layout == Layout::kInterleaved && kernel_tokens != tokens;
  return whole ? plane_bytes() * planes : plane_bytes();
}

uint64_t BlockGeometry::extent() const noexcept {
  if (num_blocks == 0 || tokens == 0 || heads == 0 || kernel_tokens == 0) return 0;
  return (num_blocks - 1) * block_stride + (planes - 1) * plane_stride +
         (tokens / kernel_tokens - 1) * kernel_stride + (kernel_tokens - 1) * token_stride +
         (heads - 1) * head_stride + row_bytes;
}

std::string BlockGeometry::text() const {
  const bool tokens_first = heads == 1 || token_stride > head_stride;
  return fmt::format("{} {} {}x{}x{} kernel {}", layout_name(layout),
                     !heads_known   ? "whole"
                     : tokens_first ? "tokens,heads"
                                    : "heads,tokens",
                     tokens, heads, row_bytes, kernel_tokens);
}

Result<BlockGeometry> find_geometry(const CacheTensor& tensor, const LayerSpec& spec) {
  SL_TRY(check_tensor(tensor, spec));
  std::optional<BlockGeometry> found;
  Status failure;
  for (const Reading& reading : kReadings) {
    if (!fits(reading, tensor, spec)) continue;
    const auto geometry = geometry_of(reading, tensor, spec);
    if (!geometry.ok()) {
      if (failure.ok()) failure = geometry.status();
      continue;
    }
    if (!found.has_value()) {
      found = *geometry;
      continue;
    }
    if (!same_bytes(*found, *geometry)) {
      return mismatch(tensor,
                      fmt::format("it reads as {} and as {}; name its layout, axes and heads",
                                  found->text(), (*geometry).text()));
    }
    // Tokens and heads cannot be told apart; whole blocks are the same bytes either way.
    if ((*geometry).token_stride != found->token_stride) found->heads_known = false;
  }
  if (found.has_value()) return *found;
  SL_TRY(failure);
  return mismatch(tensor,
                  fmt::format("it is no {} cache with blocks of {} tokens, {} heads, head size {}, "
                              "rows of {} bytes (0: any)",
                              spec.mla ? "MLA" : layout_name(spec.layout), spec.block_size,
                              spec.num_kv_heads, spec.head_size, spec.content_bytes));
}

Result<BlockGeometry> with_num_blocks(const BlockGeometry& ours, uint64_t num_blocks) {
  Checked checked;
  BlockGeometry out = ours;
  out.num_blocks = num_blocks;
  if (ours.halves) out.plane_stride = checked.mul(ours.block_stride, num_blocks);
  checked.mul(ours.block_stride, num_blocks);
  if (num_blocks == 0 || num_blocks > kMaxBlocks || !checked.ok()) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("a cache of {} blocks of {} bytes", num_blocks, ours.block_stride));
  }
  return out;
}

}  // namespace stagelink::block_layout
