#include "engine/batch/plan.h"

#include <algorithm>
#include <string>

#include "transport/cma/cma_transport.h"

namespace stagelink::engine {
namespace {

using transport::CopyItem;
using transport::Direction;
using transport::TransportKind;

// Keeps the time of a slice of tiny pieces near that of a slice of bytes.
constexpr uint32_t kMaxItemsInSlice = 4096;

struct Range {
  uint64_t local_offset;
  uint64_t remote_offset;
  uint64_t bytes;
  uint32_t local;
  uint32_t remote;
};

// Adds ranges one by one.
class Planner {
 public:
  Planner(const SessionView& view, Direction direction, const PlanLimits& limits, Plan& plan)
      : view_(view), direction_(direction), limits_(limits), plan_(plan) {
    plan_.clear();
    plan_.local_marks.assign(view.locals.size(), 0);
  }

  Status add(size_t position, const Range& range) {
    if (range.bytes == 0) return Status();
    if (local_ == nullptr || range.local != local_index_) {
      SL_TRY(enter_local(position, range.local));
    }
    // Written so that no sum can wrap.
    if (range.bytes > local_->bytes || range.local_offset > local_->bytes - range.bytes) {
      return out_of_bounds(position, range, "local", range.local_offset, local_->bytes);
    }
    std::byte* const local = local_->base + range.local_offset;
    if (view_.by_address) return add_by_address(position, range, local);
    if (remote_ == nullptr || range.remote != remote_index_) {
      SL_TRY(enter_remote(position, range.remote));
    }
    if (range.bytes > remote_->desc.bytes ||
        range.remote_offset > remote_->desc.bytes - range.bytes) {
      return out_of_bounds(position, range, "remote", range.remote_offset, remote_->desc.bytes);
    }
    append(local, range.remote_offset, range.bytes);
    return Status();
  }

  void finish() {
    place_private();
    if (plan_.copy_items.empty()) return;
    plan_.slice_starts.push_back(static_cast<uint32_t>(plan_.copy_items.size()));
  }

 private:
  Status enter_local(size_t position, uint32_t index) {
    if (index >= view_.locals.size()) {
      return bad_index(position, "local", index, view_.locals.size());
    }
    if (view_.locals[index].record == nullptr) {
      return Status(Reason::kNotRegistered, at(position) + "local region " + std::to_string(index) +
                                                " has been deregistered");
    }
    local_index_ = index;
    local_ = &view_.locals[index];
    if (plan_.local_marks[index] == 0) {
      plan_.local_marks[index] = 1;
      plan_.locals_used.push_back(index);
    }
    return Status();
  }

  Status enter_remote(size_t position, uint32_t index) {
    if (index >= view_.remotes.size()) {
      return bad_index(position, "remote", index, view_.remotes.size());
    }
    const RemoteRegion& remote = view_.remotes[index];
    if (remote.gone || remote.stale()) {
      return Status(Reason::kSuperseded,
                    at(position) + "remote region " + std::to_string(index) +
                        " was deregistered by its owner; ask the owner for its descriptor again");
    }
    if (direction_ == Direction::kWrite && remote.desc.access == Access::kReadOnly) {
      return Status(Reason::kReadOnly, at(position) + "remote region " + std::to_string(index) +
                                           " may only be read by peers");
    }
    if (!remote.route.kind) {
      return Status(Reason::kUnreachable, at(position) + "no transport reaches remote region " +
                                              std::to_string(index) + ": " + remote.route.why);
    }
    SL_ASSIGN(way_, way_to(position, index, remote.route));
    remote_index_ = index;
    remote_ = &remote;
    return Status();
  }

  Result<TransportKind> way_to(size_t position, uint32_t index, const transport::Route& route) {
    if (*route.kind != TransportKind::kCma) return *route.kind;
    if (view_.cma == nullptr || !view_.cma->refused()) {
      private_route_ = &route;
      return TransportKind::kCma;
    }
    if (route.short_runs) return *route.short_runs;
    return Status(Reason::kUnreachable,
                  at(position) +
                      "the kernel no longer allows cma with the owner of remote region " +
                      std::to_string(index) + ", and no other transport reaches it");
  }

  Status add_by_address(size_t position, const Range& range, std::byte* local) {
    if (range.remote_offset + range.bytes < range.remote_offset) {
      return Status(Reason::kOverflow, at(position) + "address + size exceeds 64 bits");
    }
    if (view_.owner_resolves) {
      plan_.posted_items.push_back(
          {local, range.remote_offset, range.bytes, transport::kByAddress, 0});
      plan_.posted_bytes += range.bytes;
      return Status();
    }
    const bool same =
        remote_ != nullptr && range.remote_offset >= remote_->desc.address &&
        range.remote_offset - remote_->desc.address <= remote_->desc.bytes &&
        range.bytes <= remote_->desc.bytes - (range.remote_offset - remote_->desc.address);
    if (!same) {
      const auto found = view_.find(range.remote_offset, range.bytes);
      if (!found) {
        return Status(Reason::kNotRegistered,
                      at(position) + "the peer has no registered region that holds " +
                          std::to_string(range.bytes) + " bytes at address " +
                          std::to_string(range.remote_offset));
      }
      SL_TRY(enter_remote(position, *found));
      // The owner wants each range inside one registration, also where two lie side by side.
      posted_first_ = plan_.posted_items.size();
    }
    append(local, range.remote_offset - remote_->desc.address, range.bytes);
    return Status();
  }

  // Cuts at slice_bytes, merges with the item before where both sides go on.
  void append(std::byte* local, uint64_t offset, uint64_t bytes) {
    if (way_ == TransportKind::kCma) {
      const uint64_t remote = remote_->desc.address + offset;
      private_bytes_ += bytes;
      if (!merge(plan_.private_items, 0, {local, remote, bytes, remote_index_, 0}, ~uint64_t{0})) {
        plan_.private_items.push_back({local, remote, bytes, remote_index_, 0});
      }
      return;
    }
    if (way_ != TransportKind::kShm) {
      const uint64_t remote = view_.by_address ? remote_->desc.address + offset : offset;
      const uint32_t index = view_.by_address ? transport::kByAddress : remote_index_;
      plan_.posted_bytes += bytes;
      if (!merge(plan_.posted_items, posted_first_, {local, remote, bytes, index, 0},
                 ~uint64_t{0})) {
        plan_.posted_items.push_back({local, remote, bytes, index, 0});
      }
      return;
    }
    auto remote = reinterpret_cast<uint64_t>(remote_->mapping->bytes().data()) + offset;
    append_copy({local, remote, bytes, remote_index_, 0}, {limits_.slice_bytes, kMaxItemsInSlice});
  }

  struct SliceLimits {
    uint64_t bytes;
    size_t items;
  };

  // Memory that is not mapped goes one way for the whole batch, chosen by the length of its runs.
  void place_private() {
    if (plan_.private_items.empty()) return;
    const transport::BatchShape shape{private_bytes_, plan_.private_items.size()};
    if (select_for_batch(*private_route_, shape, limits_.cma_min_run) != TransportKind::kCma) {
      for (const CopyItem& item : plan_.private_items) post_private(item);
      plan_.posted_bytes += private_bytes_;
      return;
    }
    slice_open_ = false;  // None holds pieces of both kinds.
    const SliceLimits limits{limits_.slice_bytes * kCmaSliceFactor,
                             transport::CmaTransport::kMostItems};
    plan_.cma_bytes = private_bytes_;
    const auto fits = [&](const CopyItem& item) { return item.bytes <= limits.bytes; };
    if (plan_.copy_items.empty() &&
        std::all_of(plan_.private_items.begin(), plan_.private_items.end(), fits)) {
      return cut_private(limits);
    }
    for (const CopyItem& item : plan_.private_items) append_copy(item, limits);
  }

  // The usual batch: nothing else is copied, and no run is longer than a slice.
  void cut_private(const SliceLimits& limits) {
    plan_.copy_items.swap(plan_.private_items);
    plan_.copy_bytes = private_bytes_;
    plan_.slice_starts.push_back(0);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < plan_.copy_items.size(); ++i) {
      bytes += plan_.copy_items[i].bytes;
      if (bytes > limits.bytes || i - plan_.slice_starts.back() == limits.items) {
        plan_.slice_starts.push_back(i);
        bytes = plan_.copy_items[i].bytes;
      }
    }
  }

  void post_private(CopyItem item) {
    if (view_.by_address) {
      item.remote_index = transport::kByAddress;
    } else {
      item.remote -= view_.remotes[item.remote_index].desc.address;
    }
    plan_.posted_items.push_back(item);
  }

  void append_copy(CopyItem item, const SliceLimits& limits) {
    plan_.copy_bytes += item.bytes;
    for (uint64_t left = item.bytes; left != 0; left -= item.bytes) {
      item.bytes = std::min(left, limits.bytes);
      append_part(item, limits);
      item.local += item.bytes;
      item.remote += item.bytes;
    }
  }

  void append_part(const CopyItem& item, const SliceLimits& limits) {
    const bool fits = slice_open_ && slice_bytes_ + item.bytes <= limits.bytes &&
                      plan_.copy_items.size() - plan_.slice_starts.back() < limits.items;
    if (!fits) {
      plan_.slice_starts.push_back(static_cast<uint32_t>(plan_.copy_items.size()));
      slice_bytes_ = 0;
      slice_open_ = true;
    }
    slice_bytes_ += item.bytes;
    if (!fits || !merge(plan_.copy_items, plan_.slice_starts.back(), item, limits.bytes)) {
      plan_.copy_items.push_back(item);
    }
  }

  static bool merge(std::vector<CopyItem>& items, size_t first, const CopyItem& next,
                    uint64_t max_bytes) {
    if (items.size() <= first) return false;
    CopyItem& last = items.back();
    if (last.local + last.bytes != next.local || last.remote + last.bytes != next.remote ||
        last.remote_index != next.remote_index || last.bytes + next.bytes > max_bytes) {
      return false;
    }
    last.bytes += next.bytes;
    return true;
  }

  static std::string at(size_t position) { return "range " + std::to_string(position) + ": "; }

  static Status bad_index(size_t position, const char* side, uint32_t index, size_t count) {
    return Status(Reason::kOutOfBounds, at(position) + side + " region index " +
                                            std::to_string(index) + "; the session has " +
                                            std::to_string(count));
  }

  static Status out_of_bounds(size_t position, const Range& range, const char* side,
                              uint64_t offset, uint64_t limit) {
    return Status(Reason::kOutOfBounds,
                  at(position) + side + " offset " + std::to_string(offset) + " + size " +
                      std::to_string(range.bytes) + " is outside region " +
                      std::to_string(side[0] == 'l' ? range.local : range.remote) + " of " +
                      std::to_string(limit) + " bytes");
  }

  const SessionView& view_;
  const Direction direction_;
  const PlanLimits limits_;
  Plan& plan_;
  uint32_t local_index_ = ~uint32_t{0};
  uint32_t remote_index_ = ~uint32_t{0};
  const LocalRegion* local_ = nullptr;
  const RemoteRegion* remote_ = nullptr;
  TransportKind way_ = TransportKind::kStream;
  const transport::Route* private_route_ = nullptr;  // Of the private items; all have the same.
  uint64_t private_bytes_ = 0;
  bool slice_open_ = false;
  uint64_t slice_bytes_ = 0;
  size_t posted_first_ = 0;  // Posted items before this one are not merged with.
};

Status too_many(uint64_t count, uint64_t limit) {
  return Status(Reason::kTooManyRanges, "a batch of " + std::to_string(count) +
                                            " ranges; option max_ranges allows " +
                                            std::to_string(limit));
}

Status check_shape(const SessionView& view, const RangeList& ranges, const PlanLimits& limits) {
  const size_t count = ranges.sizes.size();
  if (count > limits.max_ranges) return too_many(count, limits.max_ranges);
  if (ranges.local_offsets.size() != count || ranges.remote_offsets.size() != count) {
    return Status(Reason::kInvalidArgument, "local_offsets, remote_offsets and sizes have " +
                                                std::to_string(ranges.local_offsets.size()) + ", " +
                                                std::to_string(ranges.remote_offsets.size()) +
                                                " and " + std::to_string(count) +
                                                " entries; they must be equal");
  }
  const auto wrong = [&](std::span<const uint32_t> indices) {
    return !indices.empty() && indices.size() != count;
  };
  if (wrong(ranges.local_regions) || wrong(ranges.remote_regions)) {
    return Status(Reason::kInvalidArgument,
                  "local_regions and remote_regions must be empty or have one entry per range");
  }
  if (view.by_address && !ranges.remote_regions.empty()) {
    return Status(Reason::kInvalidArgument, "remote_regions must be empty in a session by address");
  }
  return Status();
}

}  // namespace

void Plan::clear() noexcept {
  copy_items.clear();
  slice_starts.clear();
  posted_items.clear();
  private_items.clear();
  locals_used.clear();
  copy_bytes = 0;
  cma_bytes = 0;
  posted_bytes = 0;
}

Status plan_ranges(const SessionView& view, const RangeList& ranges, Direction direction,
                   const PlanLimits& limits, Plan& plan) {
  SL_TRY(check_shape(view, ranges, limits));
  Planner planner(view, direction, limits, plan);
  for (size_t i = 0; i < ranges.sizes.size(); ++i) {
    SL_TRY(planner.add(i, {ranges.local_offsets[i], ranges.remote_offsets[i], ranges.sizes[i],
                           ranges.local_regions.empty() ? 0 : ranges.local_regions[i],
                           ranges.remote_regions.empty() ? 0 : ranges.remote_regions[i]}));
  }
  planner.finish();
  return Status();
}

Status plan_strided(const SessionView& view, const StridedRange& range, Direction direction,
                    const PlanLimits& limits, Plan& plan) {
  if (range.count > limits.max_ranges) return too_many(range.count, limits.max_ranges);
  // With the last piece in range, no product or sum below can wrap.
  const uint64_t last = range.count == 0 ? 0 : range.count - 1;
  uint64_t end = 0;
  for (const auto& [offset, stride] : {std::pair(range.local_offset, range.local_stride),
                                       std::pair(range.remote_offset, range.remote_stride)}) {
    if (__builtin_mul_overflow(last, stride, &end) || __builtin_add_overflow(end, offset, &end)) {
      return Status(Reason::kOverflow, "offset + (count - 1) * stride exceeds 64 bits");
    }
  }
  Planner planner(view, direction, limits, plan);
  for (uint64_t i = 0; i < range.count; ++i) {
    SL_TRY(planner.add(i, {range.local_offset + i * range.local_stride,
                           range.remote_offset + i * range.remote_stride, range.bytes,
                           range.local_region, range.remote_region}));
  }
  planner.finish();
  return Status();
}

}  // namespace stagelink::engine
