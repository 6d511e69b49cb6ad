#pragma once

#include <cstdint>

#include "store/shm/arena_map.h"

namespace stagelink::store::shm {

// Where objects lie in the heap: the slots in order of their place, and the gaps between them, in
// lists by size. A gap has no memory of its own: it goes by the slot in front of it.
//
// Thread-safety: for the holder of the arena's lock.
class GapMap {
 public:
  explicit GapMap(ArenaMap& map) noexcept : map_(map) {}

  // An empty heap: one gap. Then add() the slots that are in use, in order of their offsets.
  void clear() noexcept;
  // Behind all others. `span` > 0.
  void append(uint32_t slot) noexcept;
  // After the last append(): makes the gaps known.
  void finish() noexcept;

  // A gap of at least `span` bytes: the slot in front of it, and where it begins. False: none.
  struct Place {
    uint32_t after = kNone;
    uint64_t offset = 0;
  };
  bool find(uint64_t span, Place& place) const noexcept;
  // Takes the place for the slot, whose offset and size stand already.
  void take(uint32_t slot, const Place& place) noexcept;
  void give_back(uint32_t slot) noexcept;

 private:
  uint64_t end_of(uint32_t slot) const noexcept;
  uint64_t gap_after(uint32_t slot) const noexcept;
  void bin(uint32_t slot) noexcept;
  void unbin(uint32_t slot) noexcept;

  ArenaMap& map_;
};

}  // namespace stagelink::store::shm
