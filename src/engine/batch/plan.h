#pragma once

#include <cstdint>
#include <vector>

#include "engine/batch/session_view.h"
#include "stagelink/range_list.h"
#include "stagelink/result.h"
#include "transport/transport.h"

namespace stagelink::engine {

struct PlanLimits {
  uint64_t slice_bytes = 0;
  uint64_t max_ranges = 0;
  uint64_t cma_min_run = 0;
};

// A slice of cma is one system call of up to 1023 pieces, and so larger than one of mapped memory:
// with 4 KiB pieces and the usual slice_bytes, both bounds are 4 MiB.
inline constexpr uint64_t kCmaSliceFactor = 16;

// A batch, checked, merged and cut. Its vectors keep their capacity from batch to batch, so that
// planning allocates nothing once they have grown.
struct Plan {
  std::vector<transport::CopyItem> copy_items;    // For the view's copier: shm, then cma.
  std::vector<uint32_t> slice_starts;             // First item of each slice, and the end.
  std::vector<transport::CopyItem> posted_items;  // For the peer's stream.
  uint64_t copy_bytes = 0;
  uint64_t cma_bytes = 0;  // Part of copy_bytes.
  uint64_t posted_bytes = 0;
  std::vector<uint32_t> locals_used;  // Each once.

  uint32_t slices() const noexcept {
    return slice_starts.empty() ? 0 : static_cast<uint32_t>(slice_starts.size() - 1);
  }
  void clear() noexcept;

  // Scratch: whether a local region is in locals_used; runs of memory that is not mapped, until all
  // are known and their way is chosen.
  std::vector<uint8_t> local_marks;
  std::vector<transport::CopyItem> private_items;
};

// Every range is checked before the plan is used: all or nothing. Errors name the range's position:
// invalid_argument (out_of_bounds, overflow), limit (too_many_ranges), superseded, not_registered,
// permission (read_only), unreachable.
Status plan_ranges(const SessionView& view, const RangeList& ranges, transport::Direction direction,
                   const PlanLimits& limits, Plan& plan);
Status plan_strided(const SessionView& view, const StridedRange& range,
                    transport::Direction direction, const PlanLimits& limits, Plan& plan);

}  // namespace stagelink::engine
