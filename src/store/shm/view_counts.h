#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "base/mutex.h"
#include "store/shm/arena_map.h"
#include "store/shm/pause.h"

namespace stagelink::store::shm {

// The views that this store has of each slot. The arena holds one bit for all of them together: set
// before the first, cleared after the last. So one store of one word begins and ends what a process
// holds, and a dead process holds nothing but bits of its own.
//
// Thread-safety: all methods may run at the same time.
class ViewCounts {
 public:
  ViewCounts(const ArenaMap& map, uint32_t member, const Pauses& pauses);

  // True: the slot's object, which had this tag, stays until leave(). False: it has changed, and
  // nothing is held. `last` as for leave().
  bool enter(uint32_t slot, Tag tag, bool& last) noexcept;
  // True if it was this store's last view of the slot.
  bool leave(uint32_t slot) noexcept;

 private:
  static constexpr uint32_t kStripes = 64;

  std::atomic<uint64_t>& word(uint32_t slot) noexcept {
    return map_.slot(slot).viewers[member_ / 64];
  }

  const ArenaMap& map_;
  const uint32_t member_;
  const uint64_t bit_;
  const Pauses& pauses_;
  std::array<Mutex, kStripes> stripes_;  // Each guards every 64th count.
  std::unique_ptr<uint32_t[], void (*)(uint32_t*)> counts_;
};

}  // namespace stagelink::store::shm
