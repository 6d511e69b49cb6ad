#include "store/shm/object_table.h"

#include <algorithm>
#include <utility>

namespace stagelink::store::shm {

uint32_t ObjectTable::slots_high() const noexcept {
  return std::min(map_.header().slots_high.get(), map_.max_objects());
}

bool ObjectTable::take_freed() noexcept { return std::exchange(freed_, false); }

uint32_t ObjectTable::find(uint64_t hash, std::string_view key) const noexcept {
  SlotIndex::Search search(map_, hash);
  for (uint32_t at = search.next(); at != kNone; at = search.next()) {
    const Slot& slot = map_.slot(at);
    if (map_.tag(at).state() != SlotState::kSealed || slot.hash.get() != hash) continue;
    if (map_.key_is(slot, key)) return at;
  }
  return kNone;
}

uint32_t ObjectTable::free_pop() noexcept {
  Header& header = map_.header();
  const uint32_t head = header.free_head.get();
  if (head != kNone) {
    header.free_head.set(map_.slot(head).list_next.get());
    return head;
  }
  const uint32_t high = header.slots_high.get();
  if (high >= map_.max_objects()) return kNone;
  header.slots_high.set(high + 1);
  return high;
}

void ObjectTable::free_push(uint32_t slot) noexcept {
  Header& header = map_.header();
  map_.slot(slot).list_next.set(header.free_head.get());
  header.free_head.set(slot);
}

uint32_t ObjectTable::place(const Put& put) noexcept {
  Header& header = map_.header();
  const uint64_t span = span_of(put.size, put.key.size());
  GapMap::Place place{map_.heap_head(), 0};
  if (span > 0 && !gaps_.find(span, place)) return kNone;
  const uint32_t at = free_pop();
  if (at == kNone) return kNone;
  Slot& slot = map_.slot(at);
  if (at >= map_.max_objects() || map_.tag(at).state() != SlotState::kFree) {
    map_.damaged();
    return kNone;
  }
  slot.hash.set(put.hash);
  slot.offset.set(place.offset);
  slot.size.set(put.size);
  slot.expiry_ns.set(0);
  slot.owner.set(put.owner);
  map_.set_key(slot, put.key);
  pauses_.at(PausePoint::kPlaceFilled);
  const uint64_t ticket = header.next_generation.get();
  header.next_generation.set(ticket + 1);
  slot.tag.store(Tag::of(SlotState::kWriting, ticket).word, std::memory_order_release);
  pauses_.at(PausePoint::kPlaceTagged);
  if (span > 0) gaps_.take(at, place);
  header.used_bytes.set(header.used_bytes.get() + span);
  pauses_.at(PausePoint::kPlaceLinked);
  return at;
}

uint64_t ObjectTable::seal(uint32_t at, uint64_t now_ns, uint64_t expiry_ns) noexcept {
  Header& header = map_.header();
  Slot& slot = map_.slot(at);
  const uint64_t hash = slot.hash.get();
  const uint32_t before = find(hash, map_.key_of(slot));
  const uint64_t generation = header.next_generation.get();
  header.next_generation.set(generation + 1);
  slot.sealed_ns.set(now_ns);
  slot.expiry_ns.set(expiry_ns);
  note_expiry(expiry_ns);
  pauses_.at(PausePoint::kSealFilled);
  // A release: whoever sees the object sealed sees its bytes.
  slot.tag.store(Tag::of(SlotState::kSealed, generation).word, std::memory_order_release);
  pauses_.at(PausePoint::kSealTagged);
  index_.put(hash, before, at);
  pauses_.at(PausePoint::kSealIndexed);
  list_append(at);
  header.objects.set(header.objects.get() + 1);
  set_grave(hash, Grave::kEmpty);
  if (before != kNone) retire_found(before, Grave::kEmpty, /*indexed=*/false);
  pauses_.at(PausePoint::kSealRetired);
  if (index_.is_worn()) reindex();
  return generation;
}

void ObjectTable::release(uint32_t at) noexcept {
  Header& header = map_.header();
  Slot& slot = map_.slot(at);
  const uint64_t span = map_.fits(slot) ? map_.span_of(slot) : 0;
  slot.tag.store(Tag::of(SlotState::kFree, 0).word, std::memory_order_release);
  pauses_.at(PausePoint::kReleaseTagged);
  if (span > 0) gaps_.give_back(at);
  pauses_.at(PausePoint::kReleaseUnlinked);
  header.used_bytes.set(header.used_bytes.get() - span);
  free_push(at);
  freed_ = true;
  pauses_.at(PausePoint::kReleased);
}

void ObjectTable::retire(uint32_t at, Grave grave) noexcept {
  retire_found(at, grave, /*indexed=*/true);
}

void ObjectTable::retire_found(uint32_t at, Grave grave, bool indexed) noexcept {
  Header& header = map_.header();
  Slot& slot = map_.slot(at);
  const uint64_t hash = slot.hash.get();
  // seq_cst, see ViewCounts::enter: either it sees the new tag, or is_viewed() sees its bit.
  slot.tag.store(Tag::of(SlotState::kRetired, map_.tag(at).generation()).word,
                 std::memory_order_seq_cst);
  pauses_.at(PausePoint::kRetireTagged);
  if (indexed) index_.remove(hash, at);
  pauses_.at(PausePoint::kRetireUnindexed);
  list_remove(at);
  header.objects.set(header.objects.get() - 1);
  if (grave != Grave::kEmpty) set_grave(hash, grave);
  if (grave == Grave::kExpired) header.expirations.set(header.expirations.get() + 1);
  if (grave == Grave::kEvicted) header.evictions.set(header.evictions.get() + 1);
  pauses_.at(PausePoint::kRetireListed);
  if (map_.is_viewed(slot)) {
    retired_push(at);
  } else {
    release(at);
  }
}

void ObjectTable::set_grave(uint64_t hash, Grave grave) noexcept {
  Cell<uint64_t>& cell = map_.header().graves[hash % kGraves];
  const uint64_t name = hash & ~uint64_t{3};
  if (grave != Grave::kEmpty) return cell.set(name | static_cast<uint64_t>(grave));
  if ((cell.get() & ~uint64_t{3}) == name) cell.set(0);
}

void ObjectTable::note_expiry(uint64_t expiry_ns) noexcept {
  if (expiry_ns == 0) return;
  Cell<uint64_t>& earliest = map_.header().earliest_expiry_ns;
  if (earliest.get() == 0 || expiry_ns < earliest.get()) earliest.set(expiry_ns);
}

void ObjectTable::set_expiry(uint32_t at, uint64_t expiry_ns) noexcept {
  map_.slot(at).expiry_ns.set(expiry_ns);
  note_expiry(expiry_ns);
}

bool ObjectTable::sweep_retired() noexcept {
  bool any = false;
  uint32_t at = map_.header().retired_head.get();
  for (uint32_t steps = 0; at != kNone; ++steps) {
    if (steps > map_.max_objects()) {
      map_.damaged();
      return any;
    }
    const uint32_t next = map_.slot(at).list_next.get();
    if (!map_.is_viewed(map_.slot(at))) {
      retired_remove(at);
      release(at);
      any = true;
    }
    at = next;
  }
  return any;
}

bool ObjectTable::sweep_expired(uint64_t now_ns) noexcept {
  Header& header = map_.header();
  const uint64_t earliest = header.earliest_expiry_ns.get();
  if (earliest == 0 || now_ns < earliest) return false;
  bool any = false;
  uint64_t next_expiry = 0;
  uint32_t at = header.oldest.get();
  for (uint32_t steps = 0; at != kNone; ++steps) {
    if (steps > map_.max_objects()) {
      map_.damaged();
      return any;
    }
    const uint32_t next = map_.slot(at).list_next.get();
    const uint64_t expiry = map_.slot(at).expiry_ns.get();
    if (expiry != 0 && expiry <= now_ns) {
      retire(at, Grave::kExpired);
      any = true;
    } else if (expiry != 0 && (next_expiry == 0 || expiry < next_expiry)) {
      next_expiry = expiry;
    }
    at = next;
  }
  header.earliest_expiry_ns.set(next_expiry);
  return any;
}

bool ObjectTable::evict(uint64_t span) noexcept {
  Header& header = map_.header();
  uint64_t free_bytes = map_.geometry().capacity - header.used_bytes.get();
  std::vector<uint32_t> victims;
  uint32_t at = header.oldest.get();
  for (uint32_t steps = 0; at != kNone && steps <= map_.max_objects(); ++steps) {
    const Slot& slot = map_.slot(at);
    if (!map_.is_viewed(slot)) {
      victims.push_back(at);
      free_bytes += map_.span_of(slot);
    }
    at = slot.list_next.get();
  }
  if (free_bytes < span) return false;
  GapMap::Place place;
  bool any = false;
  for (const uint32_t victim : victims) {
    const bool has_slot = header.free_head.get() != kNone || slots_high() < map_.max_objects();
    if (has_slot && (span == 0 || gaps_.find(span, place))) break;
    retire(victim, Grave::kEvicted);
    any = true;
  }
  return any;
}

void ObjectTable::clear_member(uint32_t member) noexcept {
  const uint64_t bit = uint64_t{1} << (member % 64);
  for (uint32_t at = 0; at < slots_high(); ++at) {
    Slot& slot = map_.slot(at);
    slot.viewers[member / 64].fetch_and(~bit, std::memory_order_seq_cst);
    if (map_.tag(at).state() == SlotState::kWriting && slot.owner.get() == member) release(at);
    pauses_.at(PausePoint::kClearViews);
  }
  (void)sweep_retired();
  pauses_.at(PausePoint::kClearMember);
  map_.header().members[member].used.set(0);
}

uint64_t ObjectTable::viewed() const noexcept {
  uint64_t count = 0;
  for (uint32_t at = 0; at < slots_high(); ++at) {
    if (map_.tag(at).state() >= SlotState::kSealed && map_.is_viewed(map_.slot(at))) ++count;
  }
  return count;
}

void ObjectTable::list_append(uint32_t at) noexcept {
  Header& header = map_.header();
  const uint32_t last = header.newest.get();
  map_.slot(at).list_prev.set(last);
  map_.slot(at).list_next.set(kNone);
  if (last == kNone) {
    header.oldest.set(at);
  } else {
    map_.slot(last).list_next.set(at);
  }
  header.newest.set(at);
}

void ObjectTable::list_remove(uint32_t at) noexcept {
  Header& header = map_.header();
  const uint32_t prev = map_.slot(at).list_prev.get();
  const uint32_t next = map_.slot(at).list_next.get();
  if (prev == kNone) {
    header.oldest.set(next);
  } else {
    map_.slot(prev).list_next.set(next);
  }
  if (next == kNone) {
    header.newest.set(prev);
  } else {
    map_.slot(next).list_prev.set(prev);
  }
}

void ObjectTable::retired_push(uint32_t at) noexcept {
  Header& header = map_.header();
  const uint32_t head = header.retired_head.get();
  map_.slot(at).list_prev.set(kNone);
  map_.slot(at).list_next.set(head);
  if (head != kNone) map_.slot(head).list_prev.set(at);
  header.retired_head.set(at);
}

void ObjectTable::retired_remove(uint32_t at) noexcept {
  const uint32_t prev = map_.slot(at).list_prev.get();
  const uint32_t next = map_.slot(at).list_next.get();
  if (prev == kNone) {
    map_.header().retired_head.set(next);
  } else {
    map_.slot(prev).list_next.set(next);
  }
  if (next != kNone) map_.slot(next).list_prev.set(prev);
}

void ObjectTable::reindex() noexcept {
  index_.begin_anew();
  pauses_.at(PausePoint::kRebuildIndex);
  uint32_t at = map_.header().oldest.get();
  for (uint32_t steps = 0; at != kNone; ++steps) {
    if (steps > map_.max_objects()) {
      map_.damaged();
      break;
    }
    index_.put(map_.slot(at).hash.get(), kNone, at);
    at = map_.slot(at).list_next.get();
  }
  index_.end_anew();
}

}  // namespace stagelink::store::shm
