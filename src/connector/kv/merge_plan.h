#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "connector/kv/payload_header.h"
#include "connector/kv/rank_map.h"
#include "stagelink/result.h"

namespace stagelink::kv {

// The header of one payload that a receiver gets, and what it is expected to hold.
struct MergePart {
  const PayloadHeader* header = nullptr;
  RankRoute route;     // One of RankMap::gets().
  bool sliced = true;  // The sender put the share alone; else its whole shard, as 0.30 may.
};

// Whether the sender has put the share of `to_rank` alone, by what it says in the metadata
// (`tp_head_slice`). Errors: incompatible for a share of another rank; corrupt (frame).
Result<bool> sliced_by_sender(const PayloadHeader& header, uint32_t to_rank);

// Rows of a payload that go to the final tensors.
struct Placement {
  uint64_t from = 0;  // Offset in the payload.
  uint64_t to = 0;    // Offset in the final memory.
  uint64_t rows = 0;
  uint64_t row_bytes = 0;
  uint64_t from_stride = 0;
  uint64_t to_stride = 0;
  // One run on both sides: it can be read straight into place.
  bool dense() const noexcept {
    return rows <= 1 || (row_bytes == from_stride && row_bytes == to_stride);
  }
};

// What a receiver makes of the payloads of its senders: tensors with all of its heads, one behind
// the other and aligned, in one piece of memory.
//
// Thread-safety: immutable.
class MergePlan {
 public:
  // `kv_heads`: what each tensor must have in the end; 0: not known. Errors: incompatible for
  // payloads that do not fit one another or the shares; names rank, tensor and both values.
  static Result<MergePlan> create(std::span<const MergePart> parts, uint64_t kv_heads = 0);

  uint64_t bytes() const noexcept { return bytes_; }
  // Offsets are those in the final memory.
  std::span<const PayloadTensor> tensors() const noexcept { return tensors_; }
  std::span<const Placement> placements(size_t part) const noexcept { return placements_[part]; }
  // All of the part's placements are dense.
  bool dense(size_t part) const noexcept;
  // Copies what the payload has to where it belongs. Errors: invalid_argument (out_of_bounds) if
  // either is not of the size that was said.
  Status place(size_t part, std::span<const std::byte> payload, std::span<std::byte> memory) const;

 private:
  Status add_tensor(std::span<const MergePart> parts, size_t index, uint64_t kv_heads);

  uint64_t bytes_ = 0;
  std::vector<PayloadTensor> tensors_;
  std::vector<std::vector<Placement>> placements_;
  std::vector<uint64_t> payload_bytes_;
};

}  // namespace stagelink::kv
