#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "connector/serializer/payload.h"
#include "connector/serializer/piece_writer.h"
#include "stagelink/result.h"

namespace stagelink::serializer {

// The elements of an array where its owner has them: anything with a shape and strides, which may
// be zero or negative. Axes that can be walked as one are one.
//
// Thread-safety: a value. It does not own the elements.
class ArraySource {
 public:
  ArraySource() = default;
  // `strides` in bytes. Errors: limit (too_large) if the axes are too many or the bytes have no
  // number; invalid_argument for a negative extent.
  static Result<ArraySource> create(const void* first, std::span<const int64_t> shape,
                                    std::span<const int64_t> strides, uint64_t item_bytes);
  static ArraySource dense(std::span<const std::byte> bytes) noexcept;

  uint64_t bytes() const noexcept { return bytes_; }
  bool is_dense() const noexcept { return axes_.empty(); }
  std::span<const std::byte> dense_bytes() const noexcept { return {first_, bytes_}; }
  // In C order, each byte once.
  void copy_to(PieceWriter& out) const;
  // Appends where the bytes lie, in C order; a run that continues the last one prolongs it. False:
  // it would be more than `limit` runs in all.
  bool append_runs(std::vector<std::span<const std::byte>>& runs, size_t limit) const;

 private:
  struct Axis {
    uint64_t extent;
    int64_t stride;
  };

  void merge_axes() noexcept;
  bool append_axis(size_t axis, const std::byte* from,
                   std::vector<std::span<const std::byte>>& runs, size_t limit) const;
  void gather(std::byte* to, const memory::CopyKernel& kernel) const noexcept;
  void gather_axis(size_t axis, const std::byte* from, std::byte*& to,
                   const memory::CopyKernel& kernel) const noexcept;
  void gather_into_pieces(size_t axis, const std::byte* from, PieceWriter& out) const noexcept;

  const std::byte* first_ = nullptr;
  uint64_t bytes_ = 0;
  uint64_t run_bytes_ = 0;  // Of what lies together below the last axis.
  std::vector<Axis> axes_;  // Above the runs; none if all of it lies together.
};

}  // namespace stagelink::serializer
