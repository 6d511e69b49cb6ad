#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stagelink/result.h"
#include "wire/range_groups.h"

// The payload of kRead and kWrite: which bytes of the owner's regions, in which order.
//
//   offset  bytes  field
//        0      4  flags: bit 0 by_address, bit 1 (since 1.2) grouped; the others 0
//        4      4  timeout_ms
//        8      8  total_bytes: the sum of all range sizes
//       16      4  region_count; 0 if by_address
//       20      4  range_count, or, if grouped, group_count
//       24  16*rc  regions: u32 index, u32 zero, u64 generation
//      ...  24*n   ranges: u64 offset, u64 bytes, u32 region, u32 zero
//    or, if grouped, one behind the other
//      ...     32  group: u32 region, u32 count (bit 31: scattered), u64 offset, u64 bytes, u64
//      step
//      ...  4*m    of a scattered one: count - 1 places, i32
//
// What a group stands for says wire/range_groups.h. All groups together stand for at most
// kMaxGroupedRanges ranges. A list goes to a peer of 1.1 range by range.
//
// RegionRef alone (the payload of kGetRegion) has the 16 bytes of one entry of `regions`.
namespace stagelink::wire {

struct RegionRef {
  uint32_t index = 0;
  uint64_t generation = 0;
  friend bool operator==(const RegionRef&, const RegionRef&) = default;
};

struct BatchHeader {
  bool by_address = false;
  uint32_t timeout_ms = 0;  // What is left of the initiator's deadline.
  uint64_t total_bytes = 0;
  std::vector<RegionRef> regions;
  std::vector<WireRange> ranges;  // Either these,
  RangeGroups grouped;            // or, if there are any, these.
  friend bool operator==(const BatchHeader&, const BatchHeader&) = default;
};

inline constexpr size_t kBatchFixedBytes = 24;
inline constexpr size_t kRegionRefBytes = 16;
inline constexpr size_t kWireRangeBytes = 24;

constexpr size_t batch_header_bytes(size_t regions, size_t ranges) noexcept {
  return kBatchFixedBytes + regions * kRegionRefBytes + ranges * kWireRangeBytes;
}

// Of the list, in its form.
size_t range_count(const BatchHeader& batch) noexcept;
size_t encoded_bytes(const BatchHeader& batch) noexcept;

std::vector<std::byte> encode(const BatchHeader& batch);
// Appends to `out`, whose capacity is kept from batch to batch.
void encode_to(const BatchHeader& batch, std::vector<std::byte>& out);
// Checks counts and groups against the payload, region indices, and that the sizes add up to
// total_bytes without overflow. Bounds inside regions are the owner's business. Errors: corrupt
// (frame).
Result<BatchHeader> decode_batch_header(std::span<const std::byte> in);
// The same into a header whose vectors keep their capacity; unspecified after a failure.
Status decode_batch_header_to(std::span<const std::byte> in, BatchHeader& batch);

std::vector<std::byte> encode(const RegionRef& ref);
Result<RegionRef> decode_region_ref(std::span<const std::byte> in);

}  // namespace stagelink::wire
