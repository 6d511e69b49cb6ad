#include "connector/pull/messages/stamp.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

namespace stagelink::pull {

uint64_t key_digest(std::string_view key) noexcept { return XXH3_64bits(key.data(), key.size()); }

uint64_t payload_digest(std::span<const std::span<const std::byte>> pieces) noexcept {
  if (pieces.size() == 1) return XXH3_64bits(pieces[0].data(), pieces[0].size());
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_64bits_reset(&state);
  for (const auto piece : pieces) XXH3_64bits_update(&state, piece.data(), piece.size());
  return XXH3_64bits_digest(&state);
}

Status check_stamp(const Stamp& found, uint64_t generation, uint64_t bytes, uint64_t key) {
  if (found.magic == Stamp::kMagic && found.generation == generation && found.bytes == bytes &&
      found.key == key) {
    return {};
  }
  return Status(Reason::kSuperseded,
                fmt::format("the sender has taken the memory of generation {} back", generation));
}

}  // namespace stagelink::pull
