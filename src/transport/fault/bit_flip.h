#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "transport/transport.h"

namespace stagelink::transport {

// One bit among the bytes of `items`.
struct BitPlace {
  size_t item = 0;
  uint64_t byte = 0;  // Within the item.
  std::byte mask{1};

  void flip(std::byte* item_begin) const noexcept { item_begin[byte] ^= mask; }
};

// Chosen by `random`; nothing if the items hold no byte.
std::optional<BitPlace> pick_bit(std::span<const CopyItem> items, uint64_t random) noexcept;

}  // namespace stagelink::transport
