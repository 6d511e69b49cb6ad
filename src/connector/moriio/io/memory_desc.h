#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "connector/moriio/io/codes.h"
#include "connector/moriio/io/desc_codec.h"
#include "stagelink/region.h"

namespace stagelink::moriio {

// Memory that peers may reach: mori's MemoryDesc, a msgpack array of these fifteen fields. The two
// handles, opaque to their users, together hold one blob of 128 bytes: what our engine needs.
//
//   offset  bytes  field
//        0     16  head: magic "SLM1" (0x314d4c53), version, FNV-1a of bytes 16..128
//       16     80  RegionDesc::pack() of the region that the memory lies in
//       96      8  data       these three as in the descriptor itself
//      104      8  size
//      112      4  id
//      116     12  zero
//      128
struct MemoryDesc {
  std::string engine_key;
  uint32_t id = 0;  // Of this registration in its engine.
  int32_t device_id = -1;
  std::string device_bus_id;
  uint64_t data = 0;  // Address in the owner; offsets of transfers count from here.
  uint64_t size = 0;
  MemoryLocation loc = MemoryLocation::kUnknown;
  Handle ipc_handle{};
  int32_t numa_node = -1;
  uint64_t ipc_offset = 0;
  Handle fabric_handle{};
  int64_t vpod_id = 0;
  std::string vpod_ppod_id;
  uint64_t fabric_offset = 0;
  uint64_t fabric_alloc_size = 0;

  // Fills the handles. Set data, size and id before.
  void set_region(const RegionDesc& region);
  // The region behind the handles. Errors: corrupt (frame) if the handles are not ours, not those
  // of one descriptor, or do not fit its other fields; incompatible (version).
  Result<RegionDesc> region() const;

  std::vector<std::byte> pack() const;
  // Does not look into the handles: region() does. Errors: corrupt (frame) names the field.
  static Result<MemoryDesc> unpack(std::span<const std::byte> blob);
  friend bool operator==(const MemoryDesc&, const MemoryDesc&) = default;
};

}  // namespace stagelink::moriio
