#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "mended_blob.h"
#include "stagelink/region.h"
#include "wire/region_desc.h"

// A descriptor of our own version packs back to the same bytes; one of the next minor survives
// packing by us.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using stagelink::RegionDesc;
  const auto raw = std::as_bytes(std::span(data, size));
  (void)RegionDesc::unpack(raw).ok();
  const auto input = mended_blob(raw);
  const auto desc = RegionDesc::unpack(input);
  if (!desc.ok()) return 0;
  if ((*desc).bytes + (*desc).address < (*desc).address) std::abort();
  const auto again = (*desc).pack();
  if (again.size() != stagelink::wire::kRegionDescBytes) std::abort();
  const auto twice = RegionDesc::unpack(again);
  if (!twice.ok() || !(*twice == *desc)) std::abort();
  const bool same_version = std::equal(input.begin() + 4, input.begin() + 8, again.begin() + 4);
  if (same_version && again != input) std::abort();
  return 0;
}
