#pragma once

#include <cstdint>

#include "store/shm/arena_map.h"

namespace stagelink::store::shm {

// From the hash of a key to the slot of its sealed object: open addressing, an entry of one word.
// Entries do not move, so that a search without the lock misses nothing that was there all the
// time; but when the index is made anew, for which the epoch is odd.
//
// Thread-safety: candidate() may be called by anybody, the rest by the holder of the arena's lock.
class SlotIndex {
 public:
  explicit SlotIndex(ArenaMap& map) noexcept : map_(map) {}

  // A search: gives one slot after the other whose hash begins alike, then kNone.
  class Search {
   public:
    Search(const ArenaMap& map, uint64_t hash) noexcept : map_(map), hash_(hash), at_(hash) {}
    uint32_t next() noexcept;
    uint64_t place() const noexcept { return at_ - 1; }  // Of the entry that next() gave.

   private:
    const ArenaMap& map_;
    const uint64_t hash_;
    uint64_t at_;
    uint64_t steps_ = 0;
  };

  // A miss counts only if the epoch was even before and has not changed since.
  uint32_t epoch() const noexcept {
    return map_.header().index_epoch.load(std::memory_order_acquire);
  }

  // The entry of `old_slot` (kNone: none has to be there) names `slot` from now on.
  void put(uint64_t hash, uint32_t old_slot, uint32_t slot) noexcept;
  void remove(uint64_t hash, uint32_t slot) noexcept;
  // Makes it anew if too many entries have been taken out.
  bool is_worn() const noexcept;

  // Between them only put() with kNone.
  void begin_anew() noexcept;
  void end_anew() noexcept;

 private:
  static uint64_t entry(uint64_t hash, uint32_t slot) noexcept {
    return (hash & 0xffffffff00000000) | (slot + 1);
  }

  ArenaMap& map_;
};

}  // namespace stagelink::store::shm
