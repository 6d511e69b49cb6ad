#include "connector/kv/layer_cache.h"

#include <fmt/format.h>

namespace stagelink::kv {
namespace {

using block_layout::Layout;

Status bad_layer(const StridedTensor& layer, std::string_view why) {
  return Status(Reason::kInvalidArgument,
                fmt::format("a KV cache of shape [{}]: {}", fmt::join(layer.shape, ", "), why));
}

StridedTensor without_axis(const StridedTensor& from, size_t axis, int64_t index) {
  StridedTensor out = from;
  out.first += index * from.strides[axis];
  out.shape.erase(out.shape.begin() + static_cast<ptrdiff_t>(axis));
  out.strides.erase(out.strides.begin() + static_cast<ptrdiff_t>(axis));
  return out;
}

Status check_plane(const StridedTensor& plane, const LayerReading& reading) {
  if (plane.shape.size() < 2 || plane.shape.size() > kMaxTensorRank) {
    return bad_layer(plane, "it needs at least the axes of blocks and tokens");
  }
  if (plane.shape[1] != int64_t{reading.block_size}) {
    return bad_layer(plane, fmt::format("its blocks have {} tokens, block_size is {}",
                                        plane.shape[1], reading.block_size));
  }
  return {};
}

// What the shape can be read as.
std::vector<Layout> readings(const StridedTensor& layer, uint32_t block_size) {
  const auto& shape = layer.shape;
  const auto tokens = int64_t{block_size};
  std::vector<Layout> out;
  if (shape.size() == 4 && shape[2] == tokens && shape[3] % 2 == 0) out.push_back(Layout::kRows);
  if (shape.size() >= 3 && shape[0] == 2 && shape[2] == tokens) out.push_back(Layout::kKvFirst);
  if (shape.size() >= 3 && shape[1] == 2 && shape[2] == tokens) out.push_back(Layout::kInterleaved);
  return out;
}

Result<Layout> layout_of(const StridedTensor& layer, const LayerReading& reading) {
  const std::vector<Layout> found = readings(layer, reading.block_size);
  if (reading.layout != Layout::kAuto) {
    for (const Layout layout : found) {
      if (layout == reading.layout) return layout;
    }
    return bad_layer(layer,
                     fmt::format("it is not {} with blocks of {} tokens",
                                 block_layout::layout_name(reading.layout), reading.block_size));
  }
  // Rows have four axes, the others five wherever there are heads: no guess.
  if (found.size() == 1 || (!found.empty() && found.front() == Layout::kRows)) return found.front();
  if (found.empty()) {
    return bad_layer(layer,
                     fmt::format("with blocks of {} tokens it is none of [2, blocks, tokens, "
                                 "...], [blocks, 2, tokens, ...] and [blocks, heads, "
                                 "tokens, 2 * dim]",
                                 reading.block_size));
  }
  return bad_layer(
      layer, fmt::format("it can be read as {} and as {}; name the layout",
                         block_layout::layout_name(found[0]), block_layout::layout_name(found[1])));
}

// [blocks, heads, tokens, 2 * dim], K in the first half of each row.
LayerPlanes planes_of_rows(const StridedTensor& layer) {
  StridedTensor keys = layer;
  std::swap(keys.shape[1], keys.shape[2]);
  std::swap(keys.strides[1], keys.strides[2]);
  keys.shape[3] /= 2;
  StridedTensor values = keys;
  values.first += keys.shape[3] * keys.strides[3];
  return {std::move(keys), std::move(values)};
}

}  // namespace

Result<size_t> block_axis(const StridedTensor& layer, const LayerReading& reading) {
  if (reading.mla) return size_t{0};
  SL_ASSIGN(const Layout layout, layout_of(layer, reading));
  return size_t{layout == Layout::kKvFirst ? 1U : 0U};
}

Result<LayerPlanes> planes_of(const StridedTensor& layer, const LayerReading& reading) {
  if (reading.block_size == 0) return bad_layer(layer, "block_size is 0");
  if (reading.mla) {
    SL_TRY(check_plane(layer, reading));
    return LayerPlanes{layer, std::nullopt};
  }
  SL_ASSIGN(const Layout layout, layout_of(layer, reading));
  if (layout == Layout::kRows) return planes_of_rows(layer);
  const size_t axis = layout == Layout::kKvFirst ? 0 : 1;
  return LayerPlanes{without_axis(layer, axis, 0), without_axis(layer, axis, 1)};
}

Result<LayerPlanes> planes_of(const StridedTensor& keys, const StridedTensor& values,
                              const LayerReading& reading) {
  SL_TRY(check_plane(keys, reading));
  SL_TRY(check_plane(values, reading));
  return LayerPlanes{keys, values};
}

}  // namespace stagelink::kv
