#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stagelink/result.h"

// The payload of kRead and kWrite: which bytes of the owner's regions, in which order.
namespace stagelink::wire {

struct RegionRef {
  uint32_t index = 0;
  uint64_t generation = 0;
  friend bool operator==(const RegionRef&, const RegionRef&) = default;
};

struct WireRange {
  uint32_t region = 0;  // Into BatchHeader::regions; 0 if by_address.
  uint64_t offset = 0;  // In the region, or the absolute address.
  uint64_t bytes = 0;
  friend bool operator==(const WireRange&, const WireRange&) = default;
};

// Views into a decoded payload; ranges are copied out one by one because they are not aligned.
struct BatchHeader {
  bool by_address = false;
  uint32_t timeout_ms = 0;  // What is left of the initiator's deadline.
  uint64_t total_bytes = 0;
  std::vector<RegionRef> regions;
  std::vector<WireRange> ranges;
};

std::vector<std::byte> encode(const BatchHeader& batch);
// Checks counts against the payload, region indices, and that the sizes add up to total_bytes
// without overflow. Bounds inside regions are the owner's business.
Result<BatchHeader> decode_batch_header(std::span<const std::byte> in);

std::vector<std::byte> encode(const RegionRef& ref);
Result<RegionRef> decode_region_ref(std::span<const std::byte> in);

}  // namespace stagelink::wire
