#include "wire/region_desc.h"

#include <limits>

#include "base/bytes.h"
#include "stagelink/region.h"
#include "wire/checked_blob.h"
#include "wire/field_reader.h"
#include "wire/table_layout.h"

namespace stagelink {

std::vector<std::byte> RegionDesc::pack() const {
  ByteWriter out;
  out.put(instance.high);
  out.put(instance.low);
  out.put(index);
  out.put((shareable ? uint32_t{wire::kFlagShareable} : 0) |
          (access == Access::kReadWrite ? uint32_t{wire::kFlagPeersMayWrite} : 0));
  out.put(generation);
  out.put(address);
  out.put(bytes);
  out.put(nonce);
  out.put(uint64_t{0});
  return wire::seal_blob(wire::kRegionDescMagic, wire::own_version(), out.take());
}

Result<RegionDesc> RegionDesc::unpack(std::span<const std::byte> blob) {
  wire::FieldReader reader("region descriptor", blob);
  SL_ASSIGN(const wire::Version version,
            wire::open_blob(reader, blob, wire::kRegionDescMagic, "region descriptor"));
  const bool newer = version.minor > wire::own_version().minor;
  RegionDesc desc;
  desc.instance = reader.get_instance("instance");
  desc.index = reader.get<uint32_t>("index");
  const auto flags = reader.get<uint32_t>("flags");
  if ((flags & ~uint32_t{wire::kFlagShareable | wire::kFlagPeersMayWrite}) != 0 && !newer) {
    reader.reject("flags", "has unknown bits", flags);
  }
  desc.shareable = (flags & wire::kFlagShareable) != 0;
  desc.access = (flags & wire::kFlagPeersMayWrite) != 0 ? Access::kReadWrite : Access::kReadOnly;
  desc.generation = reader.get<uint64_t>("generation");
  desc.address = reader.get<uint64_t>("address");
  desc.bytes = reader.get<uint64_t>("bytes");
  if (desc.bytes > std::numeric_limits<uint64_t>::max() - desc.address) {
    reader.reject("bytes", "wraps the address space", desc.bytes);
  }
  desc.nonce = reader.get<uint64_t>("nonce");
  if (const auto reserved = reader.get<uint64_t>("reserved"); reserved != 0 && !newer) {
    reader.reject("reserved", "is not zero", reserved);
  }
  SL_TRY(reader.finish(newer));
  return desc;
}

}  // namespace stagelink
