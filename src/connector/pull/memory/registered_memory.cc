#include "connector/pull/memory/registered_memory.h"

#include <algorithm>

namespace stagelink::pull {

void RegisteredMemory::add(const std::shared_ptr<const Region>& region) {
  const auto bytes = region->bytes();
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  MutexLock lock(mutex_);
  std::erase_if(entries_, [](const Entry& entry) { return entry.region.expired(); });
  const auto at =
      std::upper_bound(entries_.begin(), entries_.end(), begin,
                       [](uintptr_t address, const Entry& entry) { return address < entry.begin; });
  entries_.insert(at, Entry{begin, begin + bytes.size(), region});
}

std::shared_ptr<const Region> RegisteredMemory::find(std::span<const std::byte> bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  MutexLock lock(mutex_);
  // The nearest beginnings first: registrations may overlap.
  auto at =
      std::upper_bound(entries_.begin(), entries_.end(), begin,
                       [](uintptr_t address, const Entry& entry) { return address < entry.begin; });
  constexpr int kMostOverlaps = 64;
  for (int i = 0; i < kMostOverlaps && at != entries_.begin(); ++i) {
    --at;
    if (begin + bytes.size() > at->end) continue;
    if (auto region = at->region.lock()) return region;
  }
  return nullptr;
}

}  // namespace stagelink::pull
