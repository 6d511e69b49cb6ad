#pragma once

#include <span>
#include <string>
#include <vector>

#include "stagelink/region.h"
#include "stagelink/result.h"
#include "wire/hello.h"

// What Engine::descriptor() packs and Engine::connect() reads.
//
//   offset  bytes  field
//        0      4  magic "SLE1" (0x31454c53)
//        4      2  version major
//        6      2  version minor
//        8      8  check: FNV-1a of all bytes from offset 16 to the end
//       16     16  instance (high, low)
//       32     16  host
//       48    2+n  name
//      ...    2+m  socket_path
//      ...      2  address_count, at most 16
//      ...  each   address: u16 length, "host:port"
namespace stagelink::wire {

struct EngineDesc {
  Version version;
  InstanceId instance;
  InstanceId host;
  std::string name;
  std::string socket_path;
  std::vector<std::string> addresses;  // "host:port", at most 16, never a wildcard.
  friend bool operator==(const EngineDesc&, const EngineDesc&) = default;
};

inline constexpr uint32_t kEngineDescMagic = 0x31454c53;
inline constexpr size_t kMaxAddresses = 16;
inline constexpr size_t kMaxAddressBytes = 261;  // A host name of 255 bytes, ':' and a port.
inline constexpr size_t kMaxEngineDescBytes = 8 << 10;

std::vector<std::byte> encode(const EngineDesc& desc);
// Errors: corrupt (frame) names the field; incompatible (version) names both versions.
Result<EngineDesc> decode_engine_desc(std::span<const std::byte> in);

}  // namespace stagelink::wire
