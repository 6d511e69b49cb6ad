#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace stagelink::serializer {

// The sum of a frame of the fast form, in however many pieces it lies: of all bytes but those of
// the sum itself. It finds damage, not forgery.
uint64_t sum_of_frame(std::span<const std::span<const std::byte>> pieces) noexcept;

}  // namespace stagelink::serializer
