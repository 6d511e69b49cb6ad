#include "wire/range_groups.h"

#include <bit>
#include <limits>
#include <optional>

namespace stagelink::wire {
namespace {

// Fewer ranges at one distance are as short as places of a scattered group.
constexpr size_t kMinStrided = 8;
constexpr size_t kPlaceBytes = sizeof(int32_t);
constexpr size_t kPlainRangeBytes = 24;

// The largest power of two that all distances between offsets are multiples of.
uint64_t unit_of(std::span<const WireRange> ranges) noexcept {
  uint64_t differing = 0;
  for (const WireRange& range : ranges) differing |= range.offset ^ ranges.front().offset;
  return differing == 0 ? 1 : uint64_t{1} << std::countr_zero(differing);
}

bool alike(const WireRange& one, const WireRange& other) noexcept {
  return one.region == other.region && one.bytes == other.bytes;
}

// How many ranges from the first on lie at one distance.
size_t strided(std::span<const WireRange> ranges) noexcept {
  if (ranges.size() < 2 || !alike(ranges[0], ranges[1])) return 1;
  const uint64_t step = ranges[1].offset - ranges[0].offset;
  size_t count = 2;
  while (count < ranges.size() && alike(ranges[count], ranges[0]) &&
         ranges[count].offset - ranges[count - 1].offset == step) {
    ++count;
  }
  return count;
}

// Where a range lies from the beginning of a group, in its unit, if the wire can say so.
std::optional<int32_t> place_in(const RangeGroup& group, const WireRange& range) noexcept {
  if (!group.scattered || group.region != range.region || group.bytes != range.bytes) return {};
  // The unit divides the distance, also where that is negative.
  const auto distance = static_cast<int64_t>(range.offset - group.offset);
  const int64_t place = distance >> std::countr_zero(group.step);
  if (place < std::numeric_limits<int32_t>::min() || place > std::numeric_limits<int32_t>::max()) {
    return {};
  }
  return static_cast<int32_t>(place);
}

}  // namespace

bool group_ranges(std::span<const WireRange> ranges, RangeGroups& out) {
  out.clear();
  if (ranges.empty() || ranges.size() > kMaxGroupedRanges) return false;
  const uint64_t unit = unit_of(ranges);
  const size_t plain_bytes = ranges.size() * kPlainRangeBytes;
  size_t bytes = 0;
  for (size_t at = 0; at < ranges.size() && bytes < plain_bytes;) {
    const WireRange& range = ranges[at];
    if (const size_t count = strided(ranges.subspan(at)); count >= kMinStrided) {
      const uint64_t step = ranges[at + 1].offset - range.offset;
      out.groups.push_back(
          {range.region, static_cast<uint32_t>(count), false, range.offset, range.bytes, step});
      bytes += kRangeGroupBytes;
      at += count;
      continue;
    }
    ++at;
    if (!out.groups.empty()) {
      if (const auto place = place_in(out.groups.back(), range)) {
        ++out.groups.back().count;
        out.places.push_back(*place);
        bytes += kPlaceBytes;
        continue;
      }
    }
    out.groups.push_back({range.region, 1, true, range.offset, range.bytes, unit});
    bytes += kRangeGroupBytes;
  }
  return bytes < plain_bytes;
}

WireRange GroupWalk::next() noexcept {
  const RangeGroup& group = list_->groups[group_];
  WireRange range{group.region, group.offset, group.bytes};
  if (within_ > 0) {
    const uint64_t steps = group.scattered ? static_cast<uint64_t>(int64_t{list_->places[place_++]})
                                           : uint64_t{within_};
    range.offset += steps * group.step;
  }
  if (++within_ == group.count) {
    within_ = 0;
    ++group_;
  }
  return range;
}

}  // namespace stagelink::wire
