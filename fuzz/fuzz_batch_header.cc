#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "wire/batch_header.h"

// What the decoders accept encodes back to the same bytes, names only listed regions and adds up.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stagelink::wire;
  const auto input = std::as_bytes(std::span(data, size));
  if (const auto ref = decode_region_ref(input); ref.ok()) {
    const auto again = encode(*ref);
    if (!std::equal(again.begin(), again.end(), input.begin(), input.end())) std::abort();
  }
  const auto batch = decode_batch_header(input);
  if (!batch.ok()) return 0;
  uint64_t sum = 0;
  GroupWalk walk;
  walk.begin((*batch).grouped);
  const size_t count = range_count(*batch);
  if (!(*batch).grouped.groups.empty() && count > kMaxGroupedRanges) std::abort();
  for (size_t i = 0; i < count; ++i) {
    const bool grouped = !(*batch).grouped.groups.empty();
    const WireRange range = grouped ? walk.next() : (*batch).ranges[i];
    if (range.region >= (*batch).regions.size() && !(*batch).by_address) std::abort();
    sum += range.bytes;
  }
  if (sum != (*batch).total_bytes) std::abort();
  const auto again = encode(*batch);
  if (!std::equal(again.begin(), again.end(), input.begin(), input.end())) std::abort();
  return 0;
}
