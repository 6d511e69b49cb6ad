#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stagelink::wire {

struct WireRange {
  uint32_t region = 0;  // Into BatchHeader::regions; 0 if by_address.
  uint64_t offset = 0;  // In the region, or the absolute address.
  uint64_t bytes = 0;
  friend bool operator==(const WireRange&, const WireRange&) = default;
};

// Ranges of one region and one size. Strided: each begins `step` behind the one before. Scattered:
// range i > 0 begins places[i - 1] * step behind the first. Offsets wrap, as they do when somebody
// adds them up who does not look: whoever uses one checks it against its region.
struct RangeGroup {
  uint32_t region = 0;
  uint32_t count = 0;
  bool scattered = false;
  uint64_t offset = 0;  // Of the first.
  uint64_t bytes = 0;   // Of each.
  uint64_t step = 0;
  friend bool operator==(const RangeGroup&, const RangeGroup&) = default;
};

// A list as groups, and the places of all scattered ones behind each other.
struct RangeGroups {
  std::vector<RangeGroup> groups;
  std::vector<int32_t> places;
  void clear() noexcept {
    groups.clear();
    places.clear();
  }
  friend bool operator==(const RangeGroups&, const RangeGroups&) = default;
};

inline constexpr size_t kRangeGroupBytes = 32;
// A few bytes of groups can stand for any number of ranges. A list of more is sent range by range,
// so that what an owner has to keep is in proportion to what came.
inline constexpr size_t kMaxGroupedRanges = 64 << 10;

// Writes `ranges` as groups. False, and nothing is certain about `out`, if that would be no shorter
// than range by range.
bool group_ranges(std::span<const WireRange> ranges, RangeGroups& out);

// Takes the ranges out of groups in their order.
//
// Thread-safety: none; used by one thread.
class GroupWalk {
 public:
  void begin(const RangeGroups& list) noexcept { *this = GroupWalk(&list); }
  // Only as often as there are ranges.
  WireRange next() noexcept;

  GroupWalk() noexcept = default;

 private:
  explicit GroupWalk(const RangeGroups* list) noexcept : list_(list) {}

  const RangeGroups* list_ = nullptr;
  size_t group_ = 0;
  uint32_t within_ = 0;  // Of the group.
  size_t place_ = 0;
};

}  // namespace stagelink::wire
