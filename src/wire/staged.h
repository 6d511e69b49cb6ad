#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "stagelink/result.h"

// How many bytes were put into a staging area, or taken out of it: the payload of kStaged and
// kStagedAck, on data connections whose welcome has brought such an area.
//
//   offset  bytes  field
//        0      4  bytes, not 0
namespace stagelink::wire {

inline constexpr size_t kStagedBytes = 4;

std::array<std::byte, kStagedBytes> encode_staged(uint32_t bytes) noexcept;
// Errors: corrupt (frame).
Result<uint32_t> decode_staged(std::span<const std::byte> in);

}  // namespace stagelink::wire
