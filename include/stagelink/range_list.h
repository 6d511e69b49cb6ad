#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace stagelink {

// The byte ranges of one batch, as arrays of equal length that the caller keeps until the
// submitting call returns (they are copied). Range i moves sizes[i] bytes between local region
// local_regions[i] at local_offsets[i] and remote region remote_regions[i] at remote_offsets[i].
// An empty index array means region 0. A size of 0 is allowed and moves nothing. In a session by
// address, remote_offsets are absolute addresses in the owner and remote_regions must be empty.
// Ranges of one batch should not overlap at the destination; if they do, the bytes there come from
// one of them, unspecified which.
struct RangeList {
  std::span<const uint64_t> local_offsets;
  std::span<const uint64_t> remote_offsets;
  std::span<const uint64_t> sizes;
  std::span<const uint32_t> local_regions;
  std::span<const uint32_t> remote_regions;
};

// `count` pieces of `bytes` each, local_stride and remote_stride apart.
struct StridedRange {
  uint64_t local_offset = 0;
  uint64_t remote_offset = 0;
  uint64_t bytes = 0;
  uint64_t count = 0;
  uint64_t local_stride = 0;
  uint64_t remote_stride = 0;
  uint32_t local_region = 0;
  uint32_t remote_region = 0;
};

}  // namespace stagelink
