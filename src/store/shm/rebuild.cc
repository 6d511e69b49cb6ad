#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "store/shm/object_table.h"

namespace stagelink::store::shm {

// The slots that are not free, as they were found.
struct ObjectTable::Found {
  std::vector<uint32_t> placed;  // With bytes in the heap.
  std::vector<uint32_t> sealed;
  std::vector<uint32_t> retired;
};

// 1. Slots in use are read and checked; what dead writers left is free.
// 2. The heap is laid out anew: its gaps are what no slot covers.
// 3. Of several sealed objects of one key the last one stays: its writer died between sealing it
//    and retiring the one before.
// 4. Nothing else is changed, and no tag but of slots that became free or retired. Whoever dies in
//    here leaves what the next one rebuilds again.
Status ObjectTable::rebuild() {
  Found found;
  SL_TRY(read_slots(found));
  pauses_.at(PausePoint::kRebuildLists);
  SL_TRY(lay_out(found));
  index_found(found);
  for (const uint32_t at : found.retired) {
    if (map_.is_viewed(map_.slot(at))) {
      retired_push(at);
    } else {
      release(at);
    }
  }
  freed_ = true;
  pauses_.at(PausePoint::kRebuilt);
  if (!map_.take_damage()) return {};
  return Status(Reason::kCorrupt, "the lists that were made from the slots do not hold");
}

Status ObjectTable::read_slots(Found& found) {
  Header& header = map_.header();
  header.free_head.set(kNone);
  header.slots_high.set(slots_high());
  uint64_t last_generation = 0;
  for (uint32_t at = slots_high(); at-- > 0;) {
    Slot& slot = map_.slot(at);
    const Tag tag = map_.tag(at);
    last_generation = std::max(last_generation, tag.generation());
    const bool abandoned =
        tag.state() == SlotState::kWriting &&
        (slot.owner.get() >= kMaxMembers || header.members[slot.owner.get()].used.get() == 0);
    if (abandoned) slot.tag.store(Tag::of(SlotState::kFree, 0).word, std::memory_order_release);
    if (abandoned || tag.state() == SlotState::kFree) {
      free_push(at);
      continue;
    }
    if (tag.state() > SlotState::kRetired || !map_.fits(slot)) {
      return Status(Reason::kCorrupt, fmt::format("slot {} holds what none can: tag {:#x}, offset "
                                                  "{}, size {}, key of {} bytes",
                                                  at, tag.word, slot.offset.get(), slot.size.get(),
                                                  slot.key_bytes.get()));
    }
    if (map_.span_of(slot) > 0) found.placed.push_back(at);
    if (tag.state() == SlotState::kSealed) found.sealed.push_back(at);
    if (tag.state() == SlotState::kRetired) found.retired.push_back(at);
  }
  const uint64_t next = std::max(header.next_generation.get(), last_generation + 1);
  if (next >= kMaxGeneration) {
    return Status(Reason::kCorrupt, fmt::format("generation {} cannot have been reached", next));
  }
  header.next_generation.set(next);
  return {};
}

Status ObjectTable::lay_out(Found& found) {
  Header& header = map_.header();
  std::sort(found.placed.begin(), found.placed.end(), [this](uint32_t a, uint32_t b) {
    return map_.slot(a).offset.get() < map_.slot(b).offset.get();
  });
  uint64_t end = 0;
  uint64_t used = 0;
  gaps_.clear();
  for (const uint32_t at : found.placed) {
    const Slot& slot = map_.slot(at);
    if (slot.offset.get() < end) {
      return Status(
          Reason::kCorrupt,
          fmt::format("the object of slot {} begins at {}, within the one that ends at {}", at,
                      slot.offset.get(), end));
    }
    end = slot.offset.get() + map_.span_of(slot);
    used += map_.span_of(slot);
    gaps_.append(at);
  }
  gaps_.finish();
  header.used_bytes.set(used);
  return {};
}

void ObjectTable::index_found(Found& found) {
  Header& header = map_.header();
  header.oldest.set(kNone);
  header.newest.set(kNone);
  header.retired_head.set(kNone);
  header.objects.set(static_cast<uint32_t>(found.sealed.size()));
  header.earliest_expiry_ns.set(0);
  std::sort(found.sealed.begin(), found.sealed.end(), [this](uint32_t a, uint32_t b) {
    return map_.tag(a).generation() < map_.tag(b).generation();
  });
  index_.begin_anew();
  pauses_.at(PausePoint::kRebuildIndex);
  std::vector<uint32_t> replaced;
  for (const uint32_t at : found.sealed) {
    Slot& slot = map_.slot(at);
    // Made from the key, so that a search need not trust it.
    slot.hash.set(map_.hash_of(map_.key_of(slot)));
    const uint32_t before = find(slot.hash.get(), map_.key_of(slot));
    index_.put(slot.hash.get(), before, at);
    list_append(at);
    note_expiry(slot.expiry_ns.get());
    if (before != kNone) replaced.push_back(before);
  }
  index_.end_anew();
  for (const uint32_t at : replaced) retire_found(at, Grave::kEmpty, /*indexed=*/false);
}

}  // namespace stagelink::store::shm
