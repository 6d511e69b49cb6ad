#pragma once

#include <span>
#include <string>
#include <vector>

#include "stagelink/region.h"
#include "stagelink/result.h"
#include "wire/hello.h"

namespace stagelink::wire {

// What Engine::descriptor() packs and Engine::connect() reads.
struct EngineDesc {
  Version version;
  InstanceId instance;
  InstanceId host;
  std::string name;
  std::string socket_path;
  std::vector<std::string> addresses;  // "host:port", at most 16, never a wildcard.
  friend bool operator==(const EngineDesc&, const EngineDesc&) = default;
};

std::vector<std::byte> encode(const EngineDesc& desc);
Result<EngineDesc> decode_engine_desc(std::span<const std::byte> in);

}  // namespace stagelink::wire
