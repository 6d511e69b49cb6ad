#include "transport/fault/bit_flip.h"

namespace stagelink::transport {

std::optional<BitPlace> pick_bit(std::span<const CopyItem> items, uint64_t random) noexcept {
  uint64_t total = 0;
  for (const CopyItem& item : items) total += item.bytes;
  if (total == 0) return std::nullopt;
  uint64_t at = (random >> 3) % total;
  for (size_t i = 0; i < items.size(); ++i) {
    if (at < items[i].bytes) return BitPlace{i, at, std::byte{1} << (random & 7)};
    at -= items[i].bytes;
  }
  return std::nullopt;
}

}  // namespace stagelink::transport
