#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "connector/kv/layer_cache.h"
#include "connector/kv/payload_header.h"
#include "connector/kv/rank_map.h"
#include "connector/serializer/array_source.h"
#include "stagelink/result.h"

namespace stagelink::kv {

struct PayloadRequest {
  std::string_view request_id;
  std::span<const int64_t> block_ids;
  uint64_t seq_len = 0;
  std::string_view metadata = "{}";  // A JSON object.
  HeadShare heads;                   // Of the heads that the layers have.
  uint32_t align = kTensorAlign;     // 1: byte for byte as vLLM-Omni writes it.
  // Where each block lies in the layers; empty: at its id. For copies of some blocks.
  std::span<const int64_t> positions;
};

// The payload of one request, ready to be written: its header, and where each tensor's bytes lie in
// the cache. Writing copies every byte once, from the cache to where the payload goes.
//
// Thread-safety: immutable. The cache must stay as it is while the plan is written.
class PayloadPlan {
 public:
  // Errors: invalid_argument names layer, block and sequence length (out_of_bounds), heads that do
  // not divide; limit (too_large).
  static Result<PayloadPlan> create(std::span<const LayerPlanes> layers,
                                    const PayloadRequest& request);

  uint64_t size() const noexcept { return size_; }
  uint64_t data_offset() const noexcept { return data_offset_; }
  // Errors: invalid_argument (out_of_bounds) if `out` is not of exactly that size.
  Status write(std::span<std::byte> out) const;
  Status write(std::span<const std::span<std::byte>> pieces) const;

  // Where the payload lies as it is, in order: for reading in place. Errors: limit
  // (too_many_ranges) if that takes more than `limit` runs. Valid as long as the plan.
  Result<std::vector<std::span<const std::byte>>> runs(size_t limit) const;

 private:
  PayloadPlan() = default;
  Status add_planes(std::span<const LayerPlanes> layers, const PayloadRequest& request,
                    bool values);
  Status add_plane(const PagedPlane& plane, const PayloadRequest& request, PayloadTensor tensor);
  void pad_to(uint64_t offset, uint64_t end);

  PayloadHeader header_;
  std::string prefix_;  // Length and JSON.
  uint64_t data_offset_ = 0;
  uint64_t size_ = 0;
  std::vector<serializer::ArraySource> sources_;  // Of the tensors, with the padding between.
};

}  // namespace stagelink::kv
