#include "wire/batch_header.h"

#include <cstring>

#include "wire/field_reader.h"

namespace stagelink::wire {
namespace {

constexpr uint32_t kFlagByAddress = 1;

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
  batch.ranges.clear();
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

}  // namespace

std::vector<std::byte> encode(const BatchHeader& batch) {
  std::vector<std::byte> out;
  encode_to(batch, out);
  return out;
}

void encode_to(const BatchHeader& batch, std::vector<std::byte>& out) {
  const size_t start = out.size();
  out.resize(start + batch_header_bytes(batch.regions.size(), batch.ranges.size()));
  std::byte* at = out.data() + start;
  place(at, batch.by_address ? kFlagByAddress : uint32_t{0});
  place(at + 4, batch.timeout_ms);
  place(at + 8, batch.total_bytes);
  place(at + 16, static_cast<uint32_t>(batch.regions.size()));
  place(at + 20, static_cast<uint32_t>(batch.ranges.size()));
  at += kBatchFixedBytes;
  for (const RegionRef& ref : batch.regions) {
    place_region(at, ref);
    at += kRegionRefBytes;
  }
  for (const WireRange& range : batch.ranges) {
    place(at, range.offset);
    place(at + 8, range.bytes);
    place(at + 16, range.region);
    place(at + 20, uint32_t{0});
    at += kWireRangeBytes;
  }
}

Result<BatchHeader> decode_batch_header(std::span<const std::byte> in) {
  BatchHeader batch;
  SL_TRY(decode_batch_header_to(in, batch));
  return batch;
}

Status decode_batch_header_to(std::span<const std::byte> in, BatchHeader& batch) {
  FieldReader reader("batch", in);
  const auto flags = reader.get<uint32_t>("flags");
  if ((flags & ~kFlagByAddress) != 0) reader.reject("flags", "has unknown bits", flags);
  batch.by_address = (flags & kFlagByAddress) != 0;
  batch.timeout_ms = reader.get<uint32_t>("timeout_ms");
  batch.total_bytes = reader.get<uint64_t>("total_bytes");
  const auto region_count = reader.get<uint32_t>("region_count");
  if (batch.by_address && region_count != 0) {
    reader.reject("region_count", "is not 0 by address", region_count);
  }
  const auto range_count = reader.get<uint32_t>("range_count");
  read_regions(reader, region_count, batch.regions);
  read_ranges(reader, range_count, batch);
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
