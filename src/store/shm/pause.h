#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace stagelink::store::shm {

// Where a process may be stopped or killed by a test: between any two stores that others can see.
enum class PausePoint : uint8_t {
  kMakeLinked,    // The file has its name, its space is not reserved.
  kMakeReserved,  // Its space is reserved, it is not ready.
  kJoinNamed,     // The member's identity stands, it is not in use.
  kJoined,
  kPlaceFilled,   // A slot is filled, still free.
  kPlaceTagged,   // It is being written.
  kPlaceLinked,   // Its place in the heap is taken.
  kSealFilled,    // Expiry stands, not sealed.
  kSealTagged,    // Sealed, not in the index.
  kSealIndexed,   // Gets find it; the object before it still counts as sealed.
  kSealRetired,   // The object before it is retired.
  kSealUnlocked,  // Nobody is woken yet.
  kRetireTagged,  // Retired, still in the index.
  kRetireUnindexed,
  kRetireListed,
  kReleaseTagged,  // The slot is free, its place in the heap is not.
  kReleaseUnlinked,
  kReleased,
  kViewFound,    // A slot is found, its bit does not stand.
  kViewCounted,  // The bit stands, the tag is not checked.
  kViewHeld,
  kViewLeft,      // The bit is gone, a retired object is not given back.
  kClearViews,    // A dead member's bits are going.
  kClearMember,   // What it held is gone, its row is not.
  kRebuildLists,  // Recovering: lists are empty.
  kRebuildIndex,  // The index is being made anew.
  kRebuilt,
  kLeaving,  // The last member, before the file goes.
  kUnlinked,
  kCount,
};

inline constexpr size_t kPausePoints = static_cast<size_t>(PausePoint::kCount);

// What a test does at a pause point. Production code has none.
using PauseHook = void (*)(PausePoint point, void* context);

struct Pauses {
  PauseHook hook = nullptr;
  void* context = nullptr;
  void at(PausePoint point) const {
    if (hook != nullptr) [[unlikely]]
      hook(point, context);
  }
};

}  // namespace stagelink::store::shm
