#include "store/shm/slot_index.h"

namespace stagelink::store::shm {

uint32_t SlotIndex::Search::next() noexcept {
  for (; steps_ < map_.geometry().index_size; ++steps_) {
    // Partner of the releases in put(): a slot's fields are seen with the entry that names it.
    const uint64_t word = map_.index_entry(at_++).load(std::memory_order_acquire);
    const auto low = static_cast<uint32_t>(word);
    if (low == kIndexEmpty) return kNone;
    if (low == kIndexGrave || (word ^ hash_) >> 32 != 0) continue;
    if (low - 1 >= map_.max_objects()) {
      map_.damaged();
      continue;
    }
    ++steps_;
    return low - 1;
  }
  return kNone;
}

void SlotIndex::put(uint64_t hash, uint32_t old_slot, uint32_t slot) noexcept {
  if (old_slot != kNone) {
    Search search(map_, hash);
    for (uint32_t found = search.next(); found != kNone; found = search.next()) {
      if (found != old_slot) continue;
      map_.index_entry(search.place()).store(entry(hash, slot), std::memory_order_release);
      return;
    }
    map_.damaged();
  }
  for (uint64_t step = 0; step < map_.geometry().index_size; ++step) {
    std::atomic<uint64_t>& word = map_.index_entry(hash + step);
    const auto low = static_cast<uint32_t>(word.load(std::memory_order_relaxed));
    if (low != kIndexEmpty && low != kIndexGrave) continue;
    if (low == kIndexGrave) {
      Header& header = map_.header();
      header.index_graves.set(header.index_graves.get() - 1);
    }
    word.store(entry(hash, slot), std::memory_order_release);
    return;
  }
  map_.damaged();  // It has twice as many entries as there are slots.
}

void SlotIndex::remove(uint64_t hash, uint32_t slot) noexcept {
  Search search(map_, hash);
  for (uint32_t found = search.next(); found != kNone; found = search.next()) {
    if (found != slot) continue;
    Header& header = map_.header();
    const uint64_t place = search.place();
    const auto next =
        static_cast<uint32_t>(map_.index_entry(place + 1).load(std::memory_order_relaxed));
    if (next == kIndexEmpty) {
      // No search needs to go on from here.
      map_.index_entry(place).store(kIndexEmpty, std::memory_order_release);
    } else {
      map_.index_entry(place).store(kIndexGrave, std::memory_order_release);
      header.index_graves.set(header.index_graves.get() + 1);
    }
    return;
  }
  map_.damaged();
}

bool SlotIndex::is_worn() const noexcept {
  return map_.header().index_graves.get() > map_.geometry().index_size / 4;
}

void SlotIndex::begin_anew() noexcept {
  Header& header = map_.header();
  header.index_epoch.store(header.index_epoch.load(std::memory_order_relaxed) | 1,
                           std::memory_order_seq_cst);
  header.index_graves.set(0);
  for (uint64_t at = 0; at < map_.geometry().index_size; ++at) {
    // A release: who sees an entry gone sees the odd epoch.
    map_.index_entry(at).store(kIndexEmpty, std::memory_order_release);
  }
}

void SlotIndex::end_anew() noexcept {
  Header& header = map_.header();
  const uint32_t epoch = header.index_epoch.load(std::memory_order_relaxed);
  header.index_epoch.store(epoch + (epoch & 1), std::memory_order_seq_cst);
}

}  // namespace stagelink::store::shm
