#include "connector/serializer/payload_sum.h"

#define XXH_INLINE_ALL
#include <algorithm>

#include <xxhash.h>

#include "connector/serializer/payload.h"

namespace stagelink::serializer {

uint64_t sum_of_frame(std::span<const std::span<const std::byte>> pieces) noexcept {
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_64bits_reset(&state);
  uint64_t at = 0;
  for (const auto piece : pieces) {
    const auto before = std::min<uint64_t>(piece.size(), at < kSumAt ? kSumAt - at : 0);
    const auto behind = std::min<uint64_t>(piece.size(), at < kPrefixBytes ? kPrefixBytes - at : 0);
    XXH3_64bits_update(&state, piece.data(), before);
    XXH3_64bits_update(&state, piece.data() + behind, piece.size() - behind);
    at += piece.size();
  }
  return XXH3_64bits_digest(&state);
}

}  // namespace stagelink::serializer
