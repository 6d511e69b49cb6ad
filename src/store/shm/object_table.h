#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "stagelink/status.h"
#include "store/shm/arena_map.h"
#include "store/shm/gap_map.h"
#include "store/shm/pause.h"
#include "store/shm/slot_index.h"

namespace stagelink::store::shm {

// What happens to the objects of an arena: placed, sealed, retired, released. A retired object can
// no longer be found; it is released, which gives its memory back, when nobody views it any more.
//
// Thread-safety: for the holder of the arena's lock.
class ObjectTable {
 public:
  ObjectTable(ArenaMap& map, const Pauses& pauses) noexcept
      : map_(map), pauses_(pauses), gaps_(map), index_(map) {}

  // The sealed object of a key, or kNone.
  uint32_t find(uint64_t hash, std::string_view key) const noexcept;

  struct Put {
    std::string_view key;
    uint64_t hash;
    uint64_t size;
    uint32_t owner;
  };
  // A slot in the state kWriting, or kNone: there is no gap or no slot.
  uint32_t place(const Put& put) noexcept;
  // Gives the generation. The object of the same key that is there is retired. `expiry_ns` 0:
  // never.
  uint64_t seal(uint32_t slot, uint64_t now_ns, uint64_t expiry_ns) noexcept;
  // Of a slot in the state kWriting, or of a retired one that nobody views.
  void release(uint32_t slot) noexcept;
  void retire(uint32_t slot, Grave grave) noexcept;
  void set_expiry(uint32_t slot, uint64_t expiry_ns) noexcept;

  // Each says whether it has given memory back.
  bool sweep_retired() noexcept;
  bool sweep_expired(uint64_t now_ns) noexcept;
  // Retires the oldest sealed objects that nobody views until there is a gap of `span` bytes and a
  // slot; none if all of them together would not do.
  bool evict(uint64_t span) noexcept;
  // Ends what a dead member has left. Its row is free then.
  void clear_member(uint32_t member) noexcept;

  // Objects that somebody views.
  uint64_t viewed() const noexcept;

  // Makes lists, gaps, index and sums from the slots. Errors: corrupt (two objects overlap, a slot
  // holds what none can).
  Status rebuild();

  // Memory was given back since the last call: whoever waits for space has to be woken.
  bool take_freed() noexcept;

 private:
  struct Found;
  void list_append(uint32_t slot) noexcept;
  void list_remove(uint32_t slot) noexcept;
  void retired_push(uint32_t slot) noexcept;
  void retired_remove(uint32_t slot) noexcept;
  void free_push(uint32_t slot) noexcept;
  uint32_t free_pop() noexcept;
  void retire_found(uint32_t slot, Grave grave, bool indexed) noexcept;
  void set_grave(uint64_t hash, Grave grave) noexcept;
  void note_expiry(uint64_t expiry_ns) noexcept;
  void reindex() noexcept;
  uint32_t slots_high() const noexcept;

  Status read_slots(Found& found);
  Status lay_out(Found& found);
  void index_found(Found& found);

  ArenaMap& map_;
  const Pauses& pauses_;
  GapMap gaps_;
  SlotIndex index_;
  bool freed_ = false;
};

}  // namespace stagelink::store::shm
