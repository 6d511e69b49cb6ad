#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stagelink/result.h"
#include "store/shm/arena.h"

// What is in an arena, for people who look into it.
namespace stagelink::store::shm {

struct ListedObject {
  std::string key;
  SlotState state = SlotState::kFree;
  uint64_t size = 0;
  uint64_t generation = 0;
  uint64_t age_ns = 0;                 // Since it was sealed.
  std::optional<uint64_t> expires_ns;  // From now; none: never.
  uint32_t viewers = 0;                // Stores that have views of it.
  int32_t writer_pid = 0;              // While it is being written.
};

struct ListedMember {
  int32_t pid = 0;
  bool same_namespace = true;  // False: the pid is one of another pid namespace.
};

struct ArenaListing {
  std::vector<ListedObject> objects;  // Sealed ones from the oldest on, then the others.
  std::vector<ListedMember> members;  // This process left out.
  bool keep = false;
  uint64_t recoveries = 0;
};

// Dead members and what has expired are cleared first. Errors: as Arena::lock.
Result<ArenaListing> list_arena(Arena& arena);

// Erases all sealed objects; gives their number. `drop_keep`: the last to leave removes the arena.
Result<uint64_t> clear_arena(Arena& arena, bool drop_keep);

}  // namespace stagelink::store::shm
