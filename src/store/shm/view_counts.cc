#include "store/shm/view_counts.h"

#include <cstdlib>

namespace stagelink::store::shm {

ViewCounts::ViewCounts(const ArenaMap& map, uint32_t member, const Pauses& pauses)
    : map_(map),
      member_(member),
      bit_(uint64_t{1} << (member % 64)),
      pauses_(pauses),
      // Zeros by the kernel: pages that are not used cost nothing.
      counts_(static_cast<uint32_t*>(std::calloc(map.max_objects(), sizeof(uint32_t))),
              [](uint32_t* counts) { std::free(counts); }) {
  if (counts_ == nullptr) throw std::bad_alloc();
}

bool ViewCounts::enter(uint32_t slot, Tag tag, bool& last) noexcept {
  {
    const MutexLock lock(stripes_[slot % kStripes]);
    if (counts_[slot]++ == 0) word(slot).fetch_or(bit_, std::memory_order_seq_cst);
  }
  pauses_.at(PausePoint::kViewCounted);
  // seq_cst, with the store of a tag and the look at the viewers in retire(): either this look sees
  // that the object has gone, or that one sees the bit.
  if (map_.slot(slot).tag.load(std::memory_order_seq_cst) == tag.word) return true;
  last = leave(slot);
  return false;
}

bool ViewCounts::leave(uint32_t slot) noexcept {
  const MutexLock lock(stripes_[slot % kStripes]);
  if (--counts_[slot] != 0) return false;
  // Also a release: who sees the bit gone may write where this process has read.
  word(slot).fetch_and(~bit_, std::memory_order_seq_cst);
  return true;
}

}  // namespace stagelink::store::shm
