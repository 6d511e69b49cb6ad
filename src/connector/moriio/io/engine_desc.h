#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stagelink/result.h"

namespace stagelink::moriio {

// Where an IO engine can be reached: mori's EngineDesc, a msgpack array of these six fields.
struct EngineDesc {
  std::string key;      // What its user calls it. Unique among the engines that know each other.
  std::string node_id;  // Of the host: MORI_NODE_ID, else the boot id, else the host's name.
  std::string hostname;
  std::string host;  // Address and port that peers connect to.
  uint16_t port = 0;
  int32_t pid = 0;

  std::vector<std::byte> pack() const;
  // Errors: corrupt (frame) names the field.
  static Result<EngineDesc> unpack(std::span<const std::byte> blob);
  friend bool operator==(const EngineDesc&, const EngineDesc&) = default;
};

// Of this process, with key and address still to be filled in.
EngineDesc describe_process();

}  // namespace stagelink::moriio
