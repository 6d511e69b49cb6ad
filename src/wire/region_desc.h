#pragma once

#include <cstddef>
#include <cstdint>

// RegionDesc::pack() and unpack(): the value that a peer needs to reach a region.
//
//   offset  bytes  field
//        0      4  magic "SLR1" (0x31524c53)
//        4      2  version major
//        6      2  version minor
//        8      8  check: FNV-1a of bytes 16..80
//       16     16  instance (high, low)
//       32      4  index: row in the owner's region table
//       36      4  flags: bit 0 shareable, bit 1 peers may write; the others 0
//       40      8  generation of that row
//       48      8  address in the owner
//       56      8  bytes; address + bytes does not overflow
//       64      8  nonce
//       72      8  zero
//       80
namespace stagelink::wire {

inline constexpr uint32_t kRegionDescMagic = 0x31524c53;
inline constexpr size_t kRegionDescBytes = 80;

}  // namespace stagelink::wire
