#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "stagelink/result.h"

// What a sender keeps about an offer where readers can see it: in its region of stamps, at the
// place that the grant names, as long as the offer's memory is held. A reader looks at it after it
// has read the payload.
//
//   offset  bytes  field
//        0      8  magic "SLPSTAMP"; 0: there is no offer here (any more)
//        8      8  generation
//       16      8  bytes: length of the payload
//       24      8  key: XXH3 of the key
//       32      8  sum: XXH3 of the payload; 0 unless has_sum is 1
//       40      4  has_sum
//       44     20  zero
namespace stagelink::pull {

struct alignas(64) Stamp {
  static constexpr uint64_t kMagic = 0x504d415453504c53;  // "SLPSTAMP"
  uint64_t magic = kMagic;
  uint64_t generation = 0;
  uint64_t bytes = 0;
  uint64_t key = 0;
  uint64_t sum = 0;
  uint32_t has_sum = 0;
  uint32_t zero[5] = {};
};
static_assert(sizeof(Stamp) == 64);

uint64_t key_digest(std::string_view key) noexcept;
// Of the bytes of all pieces, one behind the other.
uint64_t payload_digest(std::span<const std::span<const std::byte>> pieces) noexcept;

// Ok, or superseded if `found` is not the stamp of that offer.
Status check_stamp(const Stamp& found, uint64_t generation, uint64_t bytes, uint64_t key);

}  // namespace stagelink::pull
