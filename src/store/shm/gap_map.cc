#include "store/shm/gap_map.h"

#include <algorithm>
#include <bit>

namespace stagelink::store::shm {
namespace {

// Eight bins for each power of two, in units of kUnit: a gap in a higher bin is large enough.
uint32_t bin_of(uint64_t bytes) noexcept {
  const uint64_t units = bytes / kUnit;
  if (units < 8) return static_cast<uint32_t>(units);
  const auto log = static_cast<int>(std::bit_width(units)) - 1;
  const auto row = static_cast<uint32_t>(log - 2);
  const auto column = static_cast<uint32_t>((units >> (log - 3)) & 7);
  return std::min(row * 8 + column, kBins - 1);
}

}  // namespace

void GapMap::clear() noexcept {
  Header& header = map_.header();
  for (auto& bits : header.gap_bits) bits.set(0);
  for (auto& head : header.gap_heads) head.set(kNone);
  Slot& head = map_.slot(map_.heap_head());
  head.heap_prev.set(map_.heap_head());
  head.heap_next.set(map_.heap_head());
  head.gap_bin.set(kNone);
}

void GapMap::append(uint32_t slot) noexcept {
  const uint32_t head = map_.heap_head();
  const uint32_t last = map_.slot(head).heap_prev.get();
  map_.slot(slot).heap_prev.set(last);
  map_.slot(slot).heap_next.set(head);
  map_.slot(slot).gap_bin.set(kNone);
  map_.slot(last).heap_next.set(slot);
  map_.slot(head).heap_prev.set(slot);
}

void GapMap::finish() noexcept {
  uint32_t at = map_.heap_head();
  for (uint32_t steps = 0; steps <= map_.max_objects(); ++steps) {
    bin(at);
    at = map_.slot(at).heap_next.get();
    if (at == map_.heap_head()) return;
  }
  map_.damaged();
}

uint64_t GapMap::end_of(uint32_t slot) const noexcept {
  if (slot == map_.heap_head()) return 0;
  const Slot& row = map_.slot(slot);
  return row.offset.get() + map_.span_of(row);
}

uint64_t GapMap::gap_after(uint32_t slot) const noexcept {
  const uint32_t next = map_.slot(slot).heap_next.get();
  const uint64_t begin = end_of(slot);
  const uint64_t end =
      next == map_.heap_head() ? map_.geometry().capacity : map_.slot(next).offset.get();
  if (end >= begin && end <= map_.geometry().capacity) return end - begin;
  map_.damaged();
  return 0;
}

void GapMap::bin(uint32_t slot) noexcept {
  const uint64_t gap = gap_after(slot);
  if (gap < kUnit) return;
  const uint32_t index = bin_of(gap);
  Header& header = map_.header();
  const uint32_t head = header.gap_heads[index].get();
  Slot& row = map_.slot(slot);
  row.gap_bin.set(index);
  row.gap_prev.set(kNone);
  row.gap_next.set(head);
  if (head != kNone) map_.slot(head).gap_prev.set(slot);
  header.gap_heads[index].set(slot);
  auto& bits = header.gap_bits[index / 64];
  bits.set(bits.get() | uint64_t{1} << (index % 64));
}

void GapMap::unbin(uint32_t slot) noexcept {
  Slot& row = map_.slot(slot);
  const uint32_t index = row.gap_bin.get();
  if (index == kNone) return;
  if (index >= kBins) return map_.damaged();
  Header& header = map_.header();
  const uint32_t prev = row.gap_prev.get();
  const uint32_t next = row.gap_next.get();
  if (next != kNone) map_.slot(next).gap_prev.set(prev);
  if (prev != kNone) {
    map_.slot(prev).gap_next.set(next);
  } else {
    header.gap_heads[index].set(next);
    auto& bits = header.gap_bits[index / 64];
    if (next == kNone) bits.set(bits.get() & ~(uint64_t{1} << (index % 64)));
  }
  row.gap_bin.set(kNone);
}

bool GapMap::find(uint64_t span, Place& place) const noexcept {
  const Header& header = map_.header();
  // In the bin of its own size some gaps are large enough and some are not.
  const uint32_t own = bin_of(span);
  uint32_t found = kNone;
  uint32_t at = header.gap_heads[own].get();
  for (uint32_t steps = 0; at != kNone; ++steps) {
    if (steps > map_.max_objects()) {
      map_.damaged();
      return false;
    }
    if (gap_after(at) >= span) {
      found = at;
      break;
    }
    at = map_.slot(at).gap_next.get();
  }
  for (uint32_t bin = own + 1; found == kNone && bin < kBins;) {
    const uint64_t bits = header.gap_bits[bin / 64].get() >> (bin % 64);
    if (bits == 0) {
      bin = (bin / 64 + 1) * 64;
      continue;
    }
    bin += static_cast<uint32_t>(std::countr_zero(bits));
    found = header.gap_heads[bin].get();
    if (found == kNone) {
      map_.damaged();
      return false;
    }
  }
  if (found == kNone) return false;
  // A bin says what a gap should be; that it is so is looked at before it is used.
  if (gap_after(found) < span) {
    map_.damaged();
    return false;
  }
  place = {found, end_of(found)};
  return true;
}

void GapMap::take(uint32_t slot, const Place& place) noexcept {
  unbin(place.after);
  Slot& row = map_.slot(slot);
  const uint32_t next = map_.slot(place.after).heap_next.get();
  row.heap_prev.set(place.after);
  row.heap_next.set(next);
  row.gap_bin.set(kNone);
  map_.slot(next).heap_prev.set(slot);
  map_.slot(place.after).heap_next.set(slot);
  bin(slot);
}

void GapMap::give_back(uint32_t slot) noexcept {
  unbin(slot);
  Slot& row = map_.slot(slot);
  const uint32_t prev = row.heap_prev.get();
  const uint32_t next = row.heap_next.get();
  unbin(prev);
  map_.slot(prev).heap_next.set(next);
  map_.slot(next).heap_prev.set(prev);
  bin(prev);
}

}  // namespace stagelink::store::shm
