#include "wire/batch_header.h"

#include <cstring>

#include "wire/field_reader.h"

namespace stagelink::wire {
namespace {

constexpr uint32_t kFlagByAddress = 1;
constexpr uint32_t kFlagGrouped = 2;
constexpr uint32_t kScattered = uint32_t{1} << 31;

// The bulk of a batch is written and read with fixed strides: a range list may have a million rows.
template <typename T>
void place(std::byte* at, T value) noexcept {
  std::memcpy(at, &value, sizeof(T));
}
template <typename T>
T fetch(const std::byte* at) noexcept {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

void place_region(std::byte* at, const RegionRef& ref) noexcept {
  place(at, ref.index);
  place(at + 4, uint32_t{0});
  place(at + 8, ref.generation);
}

void read_regions(FieldReader& reader, uint32_t count, std::vector<RegionRef>& regions) {
  const auto raw = reader.get_bytes("regions", size_t{count} * kRegionRefBytes);
  regions.clear();
  if (!reader.ok()) return;
  regions.reserve(count);
  for (const std::byte* at = raw.data(); at != raw.data() + raw.size(); at += kRegionRefBytes) {
    if (const auto zero = fetch<uint32_t>(at + 4); zero != 0) {
      return reader.reject("regions.reserved", "is not zero", zero);
    }
    regions.push_back({fetch<uint32_t>(at), fetch<uint64_t>(at + 8)});
  }
}

void read_ranges(FieldReader& reader, uint32_t count, BatchHeader& batch) {
  const auto raw = reader.get_bytes("ranges", size_t{count} * kWireRangeBytes);
  if (!reader.ok()) return;
  batch.ranges.reserve(count);
  const size_t regions = batch.by_address ? 1 : batch.regions.size();
  uint64_t sum = 0;
  for (const std::byte* at = raw.data(); at != raw.data() + raw.size(); at += kWireRangeBytes) {
    const WireRange range{fetch<uint32_t>(at + 16), fetch<uint64_t>(at), fetch<uint64_t>(at + 8)};
    if (const auto zero = fetch<uint32_t>(at + 20); zero != 0) {
      return reader.reject("ranges.reserved", "is not zero", zero);
    }
    if (range.region >= regions) {
      return reader.reject("ranges.region", "is not in the region list", range.region);
    }
    if (__builtin_add_overflow(sum, range.bytes, &sum)) {
      return reader.reject("ranges.bytes", "overflow their sum", range.bytes);
    }
    batch.ranges.push_back(range);
  }
  if (sum != batch.total_bytes) {
    reader.reject("total_bytes", "is not the sum of the ranges", batch.total_bytes);
  }
}

void read_places(FieldReader& reader, size_t count, std::vector<int32_t>& places) {
  const auto raw = reader.get_bytes("groups.places", count * sizeof(int32_t));
  if (raw.empty()) return;
  places.resize(places.size() + count);
  std::memcpy(&places[places.size() - count], raw.data(), raw.size());
}

RangeGroup read_group(FieldReader& reader, size_t regions) {
  RangeGroup group;
  group.region = reader.get<uint32_t>("groups.region");
  if (group.region >= regions) {
    reader.reject("groups.region", "is not in the region list", group.region);
  }
  const auto count = reader.get<uint32_t>("groups.count");
  group.count = count & ~kScattered;
  group.scattered = (count & kScattered) != 0;
  if (group.count == 0) reader.reject("groups.count", "is zero", count);
  group.offset = reader.get<uint64_t>("groups.offset");
  group.bytes = reader.get<uint64_t>("groups.bytes");
  group.step = reader.get<uint64_t>("groups.step");
  return group;
}

void read_groups(FieldReader& reader, uint32_t count, BatchHeader& batch) {
  const size_t regions = batch.by_address ? 1 : batch.regions.size();
  uint64_t sum = 0;
  size_t ranges = 0;
  if (count == 0) reader.reject("group_count", "is zero", count);
  for (uint32_t i = 0; i < count; ++i) {
    const RangeGroup group = read_group(reader, regions);
    if (!reader.ok()) return;
    ranges += group.count;
    if (ranges > kMaxGroupedRanges) {
      return reader.reject("groups.count", "stands for too many ranges", group.count);
    }
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(group.bytes, uint64_t{group.count}, &bytes) ||
        __builtin_add_overflow(sum, bytes, &sum)) {
      return reader.reject("groups.bytes", "overflow their sum", group.bytes);
    }
    if (group.scattered) read_places(reader, group.count - 1, batch.grouped.places);
    batch.grouped.groups.push_back(group);
  }
  if (sum != batch.total_bytes) {
    reader.reject("total_bytes", "is not the sum of the ranges", batch.total_bytes);
  }
}

void place_ranges(std::byte* at, std::span<const WireRange> ranges) noexcept {
  for (const WireRange& range : ranges) {
    place(at, range.offset);
    place(at + 8, range.bytes);
    place(at + 16, range.region);
    place(at + 20, uint32_t{0});
    at += kWireRangeBytes;
  }
}

void place_groups(std::byte* at, const RangeGroups& list) noexcept {
  const int32_t* places = list.places.data();
  for (const RangeGroup& group : list.groups) {
    place(at, group.region);
    place(at + 4, group.count | (group.scattered ? kScattered : 0));
    place(at + 8, group.offset);
    place(at + 16, group.bytes);
    place(at + 24, group.step);
    at += kRangeGroupBytes;
    if (!group.scattered || group.count == 1) continue;
    const size_t bytes = (group.count - 1) * sizeof(int32_t);
    std::memcpy(at, places, bytes);
    places += group.count - 1;
    at += bytes;
  }
}

}  // namespace

size_t range_count(const BatchHeader& batch) noexcept {
  size_t count = batch.ranges.size();
  for (const RangeGroup& group : batch.grouped.groups) count += group.count;
  return count;
}

size_t encoded_bytes(const BatchHeader& batch) noexcept {
  return batch_header_bytes(batch.regions.size(), batch.ranges.size()) +
         batch.grouped.groups.size() * kRangeGroupBytes +
         batch.grouped.places.size() * sizeof(int32_t);
}

std::vector<std::byte> encode(const BatchHeader& batch) {
  std::vector<std::byte> out;
  encode_to(batch, out);
  return out;
}

void encode_to(const BatchHeader& batch, std::vector<std::byte>& out) {
  const size_t start = out.size();
  out.resize(start + encoded_bytes(batch));
  std::byte* at = out.data() + start;
  const bool grouped = !batch.grouped.groups.empty();
  const size_t rows = grouped ? batch.grouped.groups.size() : batch.ranges.size();
  place(at, (batch.by_address ? kFlagByAddress : 0) | (grouped ? kFlagGrouped : 0));
  place(at + 4, batch.timeout_ms);
  place(at + 8, batch.total_bytes);
  place(at + 16, static_cast<uint32_t>(batch.regions.size()));
  place(at + 20, static_cast<uint32_t>(rows));
  at += kBatchFixedBytes;
  for (const RegionRef& ref : batch.regions) {
    place_region(at, ref);
    at += kRegionRefBytes;
  }
  grouped ? place_groups(at, batch.grouped) : place_ranges(at, batch.ranges);
}

Result<BatchHeader> decode_batch_header(std::span<const std::byte> in) {
  BatchHeader batch;
  SL_TRY(decode_batch_header_to(in, batch));
  return batch;
}

Status decode_batch_header_to(std::span<const std::byte> in, BatchHeader& batch) {
  FieldReader reader("batch", in);
  const auto flags = reader.get<uint32_t>("flags");
  if ((flags & ~(kFlagByAddress | kFlagGrouped)) != 0)
    reader.reject("flags", "has unknown bits", flags);
  batch.by_address = (flags & kFlagByAddress) != 0;
  batch.timeout_ms = reader.get<uint32_t>("timeout_ms");
  batch.total_bytes = reader.get<uint64_t>("total_bytes");
  const auto region_count = reader.get<uint32_t>("region_count");
  if (batch.by_address && region_count != 0) {
    reader.reject("region_count", "is not 0 by address", region_count);
  }
  const auto rows = reader.get<uint32_t>("range_count");
  read_regions(reader, region_count, batch.regions);
  batch.ranges.clear();
  batch.grouped.clear();
  (flags & kFlagGrouped) != 0 ? read_groups(reader, rows, batch) : read_ranges(reader, rows, batch);
  return reader.finish();
}

std::vector<std::byte> encode(const RegionRef& ref) {
  std::vector<std::byte> out(kRegionRefBytes);
  place_region(out.data(), ref);
  return out;
}

Result<RegionRef> decode_region_ref(std::span<const std::byte> in) {
  FieldReader reader("region reference", in);
  RegionRef ref;
  ref.index = reader.get<uint32_t>("index");
  reader.get_zero<uint32_t>("reserved");
  ref.generation = reader.get<uint64_t>("generation");
  SL_TRY(reader.finish());
  return ref;
}

}  // namespace stagelink::wire
