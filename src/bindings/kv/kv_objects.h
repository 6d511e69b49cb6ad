#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <nanobind/nanobind.h>

#include "connector/kv/layer_cache.h"
#include "connector/kv/merge_plan.h"
#include "connector/kv/payload_plan.h"
#include "connector/kv/rank_map.h"

namespace stagelink::bindings {

// The KV cache of a model, layer by layer, and the tensors that it is.
struct KvLayers {
  std::vector<kv::LayerPlanes> planes;
  std::vector<nanobind::object> owners;
};

// A plan, and the cache that it reads.
struct KvPlan {
  kv::PayloadPlan plan;
  nanobind::object layers;
};

// The headers of the payloads of one request, and what becomes of them.
struct KvMerge {
  std::vector<kv::PayloadHeader> headers;
  kv::MergePlan plan;
};

// (first, count, of).
kv::HeadShare to_share(nanobind::handle value);
// [(rank, ours, theirs)] of shares.
nanobind::list routes_list(const std::vector<kv::RankRoute>& routes);
std::vector<kv::RankRoute> to_routes(nanobind::handle value);
// [(value, layer, dtype, shape, offset, nbytes)].
nanobind::list tensors_list(std::span<const kv::PayloadTensor> tensors);

// The layers of a cache: tensors of torch or arrays of NumPy, pairs (keys, values) of them, or
// None. Raises InvalidArgument, naming the layer; unsupported for memory of a device.
KvLayers to_kv_layers(nanobind::handle layers, const kv::LayerReading& reading);

}  // namespace stagelink::bindings
