#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "wire/checked_blob.h"

// A fuzzer does not find a 64-bit check sum by itself. The input with its check made good, so that
// the fields behind it are reached.
inline std::vector<std::byte> mended_blob(std::span<const std::byte> input) {
  if (input.size() < stagelink::wire::kBlobHeadBytes) return {input.begin(), input.end()};
  uint32_t magic = 0;
  stagelink::wire::Version version;
  std::memcpy(&magic, input.data(), sizeof(magic));
  std::memcpy(&version.major, input.data() + 4, sizeof(version.major));
  std::memcpy(&version.minor, input.data() + 6, sizeof(version.minor));
  return stagelink::wire::seal_blob(magic, version, input.subspan(stagelink::wire::kBlobHeadBytes));
}
