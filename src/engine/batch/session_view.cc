#include "engine/batch/session_view.h"

#include <algorithm>

namespace stagelink::engine {

void SessionView::index_addresses() {
  spans.clear();
  for (uint32_t i = 0; i < remotes.size(); ++i) {
    const RemoteRegion& remote = remotes[i];
    if (remote.gone) continue;
    spans.push_back({remote.desc.address, remote.desc.address + remote.desc.bytes, 0, i});
  }
  std::sort(spans.begin(), spans.end(),
            [](const AddressSpan& a, const AddressSpan& b) { return a.begin < b.begin; });
  uint64_t max_end = 0;
  for (AddressSpan& span : spans) span.max_end = max_end = std::max(max_end, span.end);
}

std::optional<uint32_t> SessionView::find(uint64_t address, uint64_t bytes) const noexcept {
  if (address + bytes < address) return std::nullopt;
  auto at =
      std::upper_bound(spans.begin(), spans.end(), address,
                       [](uint64_t value, const AddressSpan& span) { return value < span.begin; });
  // Backwards while a region that begins earlier can still reach the end of the range.
  while (at != spans.begin()) {
    --at;
    if (at->max_end < address + bytes) return std::nullopt;
    if (at->end >= address + bytes) return at->index;
  }
  return std::nullopt;
}

}  // namespace stagelink::engine
