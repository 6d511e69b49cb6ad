#include "store/shm/arena_listing.h"

#include <bit>

#include "base/process_id.h"
#include "store/shm/shm_objects.h"

namespace stagelink::store::shm {
namespace {

ListedObject listed(const ArenaMap& map, uint32_t at, uint64_t now) {
  const Slot& slot = map.slot(at);
  ListedObject object;
  object.key = map.key_of(slot);
  object.state = map.tag(at).state();
  object.size = slot.size.get();
  object.generation = map.tag(at).generation();
  const uint64_t sealed = slot.sealed_ns.get();
  object.age_ns = now > sealed ? now - sealed : 0;
  const uint64_t expiry = slot.expiry_ns.get();
  if (expiry != 0) object.expires_ns = expiry > now ? expiry - now : 0;
  for (const auto& word : slot.viewers) {
    object.viewers += static_cast<uint32_t>(std::popcount(word.load(std::memory_order_relaxed)));
  }
  const uint32_t owner = slot.owner.get();
  if (object.state == SlotState::kWriting && owner < kMaxMembers) {
    object.writer_pid = map.header().members[owner].pid.get();
  }
  return object;
}

}  // namespace

Result<ArenaListing> list_arena(Arena& arena) {
  SL_ASSIGN(const auto locked, arena.lock());
  const uint64_t now = now_ns();
  (void)arena.sweep_dead(locked);
  (void)locked.objects().sweep_expired(now);
  (void)locked.objects().sweep_retired();
  const ArenaMap& map = arena.map();
  const Header& header = map.header();
  ArenaListing listing;
  listing.keep = header.keep.get() != 0;
  listing.recoveries = header.recoveries.get();
  const uint32_t high = std::min(header.slots_high.get(), map.max_objects());
  uint32_t at = header.oldest.get();
  for (uint32_t steps = 0; at != kNone && steps < high; ++steps) {
    listing.objects.push_back(listed(map, at, now));
    at = map.slot(at).list_next.get();
  }
  for (at = 0; at < high; ++at) {
    const SlotState state = map.tag(at).state();
    if (state == SlotState::kWriting || state == SlotState::kRetired) {
      listing.objects.push_back(listed(map, at, now));
    }
  }
  const ProcessId self = ProcessId::self();
  for (uint32_t member = 0; member < kMaxMembers; ++member) {
    const Member& row = header.members[member];
    if (row.used.get() == 0 || member == arena.member()) continue;
    listing.members.push_back({row.pid.get(), row.pid_namespace.get() == self.pid_namespace});
  }
  return listing;
}

Result<uint64_t> clear_arena(Arena& arena, bool drop_keep) {
  SL_ASSIGN(const auto locked, arena.lock());
  (void)arena.sweep_dead(locked);
  Header& header = arena.map().header();
  uint64_t erased = 0;
  for (uint32_t at = header.oldest.get(); at != kNone; at = header.oldest.get()) {
    if (erased > arena.map().max_objects()) break;
    locked.objects().retire(at, Grave::kEmpty);
    ++erased;
  }
  if (drop_keep) header.keep.set(0);
  return erased;
}

}  // namespace stagelink::store::shm
