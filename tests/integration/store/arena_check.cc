#include "integration/store/arena_check.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include <fmt/format.h>

namespace stagelink::test {
namespace {

using store::shm::ArenaMap;
using store::shm::Header;
using store::shm::kMaxMembers;
using store::shm::kNone;
using store::shm::kUnit;
using store::shm::Slot;
using store::shm::SlotState;

class Checker {
 public:
  Checker(const ArenaMap& map, const store::shm::ObjectTable& objects)
      : map_(map), header_(map.header()), objects_(objects) {}

  std::string run() {
    read_slots();
    check_list("sealed", header_.oldest.get(), sealed_);
    check_list("retired", header_.retired_head.get(), retired_);
    check_free();
    check_heap();
    check_gaps();
    check_index();
    expect(header_.objects.get() == sealed_.size(), "objects", header_.objects.get(),
           sealed_.size());
    expect(header_.used_bytes.get() == used_, "used_bytes", header_.used_bytes.get(), used_);
    return wrong_;
  }

 private:
  void complain(const std::string& what) { wrong_ += what + "\n"; }
  void expect(bool holds, const char* what, uint64_t is, uint64_t should) {
    if (!holds) complain(fmt::format("{} is {}, the slots say {}", what, is, should));
  }
  bool is_member(uint32_t member) const {
    return member < kMaxMembers && header_.members[member].used.get() != 0;
  }

  void read_slots() {
    for (uint32_t at = 0; at < map_.max_objects(); ++at) {
      const Slot& slot = map_.slot(at);
      const SlotState state = map_.tag(at).state();
      for (uint32_t member = 0; member < kMaxMembers; ++member) {
        const bool views = (slot.viewers[member / 64].load() >> (member % 64) & 1) != 0;
        if (views && !is_member(member)) {
          complain(fmt::format("slot {} is viewed by {}, who is no member", at, member));
        }
      }
      if (state == SlotState::kFree) continue;
      if (at >= header_.slots_high.get()) complain(fmt::format("slot {} was never used", at));
      if (!map_.fits(slot)) complain(fmt::format("slot {} does not fit", at));
      const uint64_t span = map_.span_of(slot);
      used_ += span;
      if (span > 0) placed_.emplace(slot.offset.get(), at);
      if (state == SlotState::kWriting && !is_member(slot.owner.get())) {
        complain(fmt::format("slot {} is written by {}, who is no member", at, slot.owner.get()));
      }
      if (state == SlotState::kSealed) {
        sealed_.insert(at);
        if (!keys_.insert(map_.key_of(slot)).second) {
          complain(fmt::format("slot {} has the key of another one", at));
        }
      }
      if (state == SlotState::kRetired) {
        retired_.insert(at);
        if (!map_.is_viewed(slot)) complain(fmt::format("slot {} is held for nobody", at));
      }
    }
  }

  void check_list(const char* name, uint32_t head, const std::set<uint32_t>& expected) {
    std::set<uint32_t> found;
    for (uint32_t at = head; at != kNone; at = map_.slot(at).list_next.get()) {
      if (!found.insert(at).second) return complain(fmt::format("list {} has a ring", name));
    }
    if (found != expected) {
      complain(fmt::format("list {} has {} entries of {}", name, found.size(), expected.size()));
    }
  }

  void check_free() {
    std::set<uint32_t> found;
    for (uint32_t at = header_.free_head.get(); at != kNone; at = map_.slot(at).list_next.get()) {
      if (!found.insert(at).second) return complain("the free list has a ring");
      if (map_.tag(at).state() != SlotState::kFree) complain(fmt::format("{} is not free", at));
    }
    uint64_t free = 0;
    for (uint32_t at = 0; at < header_.slots_high.get(); ++at) {
      if (map_.tag(at).state() == SlotState::kFree) ++free;
    }
    expect(found.size() == free, "free slots", found.size(), free);
  }

  void check_heap() {
    std::vector<uint32_t> expected;
    uint64_t end = 0;
    for (const auto& [offset, at] : placed_) {
      if (offset < end) complain(fmt::format("slot {} overlaps the one before", at));
      end = offset + map_.span_of(map_.slot(at));
      expected.push_back(at);
    }
    std::vector<uint32_t> found;
    for (uint32_t at = map_.slot(map_.heap_head()).heap_next.get();
         at != map_.heap_head() && found.size() <= expected.size();
         at = map_.slot(at).heap_next.get()) {
      found.push_back(at);
    }
    if (found != expected) complain("the heap's order is not that of the places");
  }

  void check_gaps() {
    std::set<uint32_t> expected;
    uint64_t end = 0;
    uint32_t before = map_.heap_head();
    for (const auto& [offset, at] : placed_) {
      if (offset - end >= kUnit) expected.insert(before);
      end = offset + map_.span_of(map_.slot(at));
      before = at;
    }
    if (map_.geometry().capacity - end >= kUnit) expected.insert(before);
    std::set<uint32_t> found;
    for (const auto& head : header_.gap_heads) {
      for (uint32_t at = head.get(); at != kNone; at = map_.slot(at).gap_next.get()) {
        if (!found.insert(at).second) return complain("a list of gaps has a ring");
      }
    }
    if (found != expected) {
      complain(fmt::format("{} gaps are known, there are {}", found.size(), expected.size()));
    }
  }

  void check_index() {
    uint64_t entries = 0;
    for (uint64_t at = 0; at < map_.geometry().index_size; ++at) {
      const auto low = static_cast<uint32_t>(map_.index_entry(at).load());
      if (low != store::shm::kIndexEmpty && low != store::shm::kIndexGrave) ++entries;
    }
    expect(entries == sealed_.size(), "entries of the index", entries, sealed_.size());
    for (const uint32_t at : sealed_) {
      const Slot& slot = map_.slot(at);
      if (objects_.find(slot.hash.get(), map_.key_of(slot)) != at) {
        complain(fmt::format("slot {} is not found by its key", at));
      }
    }
    if (header_.index_epoch.load() % 2 != 0) complain("the index is still being made");
  }

  const ArenaMap& map_;
  const Header& header_;
  const store::shm::ObjectTable& objects_;
  std::map<uint64_t, uint32_t> placed_;  // By offset.
  std::set<uint32_t> sealed_;
  std::set<uint32_t> retired_;
  std::set<std::string> keys_;
  uint64_t used_ = 0;
  std::string wrong_;
};

}  // namespace

std::string what_is_wrong(const store::shm::Arena& arena, const store::shm::Arena::Locked& locked) {
  return Checker(arena.map(), locked.objects()).run();
}

}  // namespace stagelink::test
