#include "connector/serializer/array_source.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace stagelink::serializer {
namespace {

// A run of `count` items of fixed size, `stride` bytes apart.
template <typename Item>
void pick_items(const std::byte* from, int64_t stride, uint64_t count, std::byte* to) noexcept {
  for (uint64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * sizeof(Item), from, sizeof(Item));
    from += stride;
  }
}

struct Pair {
  uint64_t halves[2];
};

void pick_runs(const std::byte* from, int64_t stride, uint64_t count, uint64_t run,
               std::byte* to) noexcept {
  switch (run) {
    case 1: return pick_items<uint8_t>(from, stride, count, to);
    case 2: return pick_items<uint16_t>(from, stride, count, to);
    case 4: return pick_items<uint32_t>(from, stride, count, to);
    case 8: return pick_items<uint64_t>(from, stride, count, to);
    case 16: return pick_items<Pair>(from, stride, count, to);
    default:
      for (uint64_t i = 0; i < count; ++i) {
        std::memcpy(to + i * run, from, run);
        from += stride;
      }
  }
}

constexpr uint64_t kLargeRun = 1024;  // From here on a run is the copy kernel's.

}  // namespace

Result<ArraySource> ArraySource::create(const void* first, std::span<const int64_t> shape,
                                        std::span<const int64_t> strides, uint64_t item_bytes) {
  if (shape.size() > kMaxRank || strides.size() != shape.size()) {
    return Status(Reason::kTooLarge,
                  fmt::format("{} axes, the limit is {}", shape.size(), kMaxRank));
  }
  ArraySource source;
  source.first_ = static_cast<const std::byte*>(first);
  source.run_bytes_ = item_bytes;
  source.bytes_ = item_bytes;
  for (const int64_t extent : shape) {
    if (extent < 0) {
      return Status(Reason::kInvalidArgument, fmt::format("an axis of {} elements", extent));
    }
    if (extent == 0) return ArraySource::dense({});
  }
  for (size_t i = 0; i < shape.size(); ++i) {
    const auto extent = static_cast<uint64_t>(shape[i]);
    if (__builtin_mul_overflow(source.bytes_, extent, &source.bytes_) ||
        source.bytes_ > INT64_MAX) {
      return Status(Reason::kTooLarge, "its bytes do not fit an address space");
    }
    if (extent > 1) source.axes_.push_back({extent, strides[i]});
  }
  if (source.bytes_ == 0) return ArraySource::dense({});
  source.merge_axes();
  return source;
}

ArraySource ArraySource::dense(std::span<const std::byte> bytes) noexcept {
  ArraySource source;
  source.first_ = bytes.data();
  source.bytes_ = bytes.size();
  source.run_bytes_ = bytes.size();
  return source;
}

void ArraySource::merge_axes() noexcept {
  // An axis whose step is the whole of the axis below it continues that one.
  size_t kept = 0;
  for (const Axis axis : axes_) {
    if (kept > 0 && axes_[kept - 1].stride == axis.stride * static_cast<int64_t>(axis.extent)) {
      axes_[kept - 1] = {axes_[kept - 1].extent * axis.extent, axis.stride};
    } else {
      axes_[kept++] = axis;
    }
  }
  axes_.resize(kept);
  if (kept > 0 && axes_.back().stride == static_cast<int64_t>(run_bytes_)) {
    run_bytes_ *= axes_.back().extent;
    axes_.pop_back();
  }
}

void ArraySource::copy_to(PieceWriter& out) const {
  if (bytes_ == 0) return;
  if (is_dense()) return out.append(dense_bytes());
  if (const auto to = out.claim(bytes_); !to.empty()) return gather(to.data(), out.kernel());
  gather_into_pieces(0, first_, out);
}

void ArraySource::gather(std::byte* to, const memory::CopyKernel& kernel) const noexcept {
  gather_axis(0, first_, to, kernel);
}

void ArraySource::gather_axis(size_t axis, const std::byte* from, std::byte*& to,
                              const memory::CopyKernel& kernel) const noexcept {
  const auto [extent, stride] = axes_[axis];
  if (axis + 1 == axes_.size() && run_bytes_ < kLargeRun) {
    pick_runs(from, stride, extent, run_bytes_, to);
    to += extent * run_bytes_;
    return;
  }
  for (uint64_t i = 0; i < extent; ++i) {
    if (axis + 1 == axes_.size()) {
      kernel.copy(to, from, run_bytes_);
      to += run_bytes_;
    } else {
      gather_axis(axis + 1, from, to, kernel);
    }
    from += stride;
  }
}

bool ArraySource::append_runs(std::vector<std::span<const std::byte>>& runs, size_t limit) const {
  return bytes_ == 0 || append_axis(0, first_, runs, limit);
}

// NOLINTNEXTLINE(misc-no-recursion) - as deep as there are axes.
bool ArraySource::append_axis(size_t axis, const std::byte* from,
                              std::vector<std::span<const std::byte>>& runs, size_t limit) const {
  if (axis == axes_.size()) {
    if (!runs.empty() && runs.back().data() + runs.back().size() == from) {
      runs.back() = {runs.back().data(), runs.back().size() + run_bytes_};
      return true;
    }
    if (runs.size() == limit) return false;
    runs.emplace_back(from, run_bytes_);
    return true;
  }
  const auto [extent, stride] = axes_[axis];
  for (uint64_t i = 0; i < extent; ++i) {
    if (!append_axis(axis + 1, from + static_cast<int64_t>(i) * stride, runs, limit)) return false;
  }
  return true;
}

// Slow where runs are short: only for an array that lies across two pieces.
void ArraySource::gather_into_pieces(size_t axis, const std::byte* from,
                                     PieceWriter& out) const noexcept {
  const auto [extent, stride] = axes_[axis];
  for (uint64_t i = 0; i < extent; ++i) {
    if (axis + 1 == axes_.size()) {
      out.append({from, run_bytes_});
    } else {
      gather_into_pieces(axis + 1, from, out);
    }
    from += stride;
  }
}

}  // namespace stagelink::serializer
