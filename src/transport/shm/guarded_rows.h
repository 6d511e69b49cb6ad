#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "transport/shm/access_lanes.h"
#include "transport/transport.h"
#include "wire/table_layout.h"

namespace stagelink::transport {

// A row of the owner's region table and the state it must have while we copy.
struct GuardedRow {
  const wire::TableEntry* entry = nullptr;  // Null: not reachable from here.
  uint64_t live_state = 0;
  uint32_t row = 0;
};

// What every copy that its owner does not see happens in: an access lane, with a look at the rows
// before and after. See docs/data-path.md, "Access lanes".
//
// Thread-safety: all methods may run at the same time.
class GuardedRows {
 public:
  // `rows[i]` guards remote_index i. All that is referred to outlives this object.
  GuardedRows(AccessLanes& lanes, const std::atomic<bool>& peer_lost,
              std::vector<GuardedRow> rows) noexcept
      : lanes_(lanes), peer_lost_(peer_lost), rows_(std::move(rows)) {}

  // Runs `move`, which answers a Status and reads and writes memory of the rows of `items` only.
  // Errors: superseded, peer_lost, busy, and those of `move`.
  template <typename Move>
  Status inside(std::span<const CopyItem> items, Move&& move) const {
    const std::optional<uint32_t> lane = claim();
    if (!lane) return no_lane();
    enter(*lane, items);
    // Sequentially consistent, after the lane's store: whoever sets peer_lost_ looks at the lanes
    // before the connection ends, and the owner waits for lanes only as long as it stands.
    Status status = peer_lost_.load() ? peer_has_ended() : check(items);
    if (status.ok()) {
      status = move();
      // Acquire: the loads of the copy come before those of the second check, also on weakly
      // ordered processors.
      std::atomic_thread_fence(std::memory_order_acquire);
      if (status.scope() != Scope::kPeer) {
        // What was moved, and what could not be, is explained by a region that has gone.
        if (Status gone = check(items); !gone.ok()) status = std::move(gone);
      }
    }
    lanes_.leave(*lane);
    // Relaxed: a hint that may come late; the checks carry the guarantee.
    if (status.ok() && peer_lost_.load(std::memory_order_relaxed)) return peer_has_ended();
    return status;
  }

 private:
  std::optional<uint32_t> claim() const noexcept;
  void enter(uint32_t lane, std::span<const CopyItem> items) const noexcept;
  Status check(std::span<const CopyItem> items) const;
  static Status no_lane();
  static Status peer_has_ended();

  AccessLanes& lanes_;
  const std::atomic<bool>& peer_lost_;
  const std::vector<GuardedRow> rows_;
};

}  // namespace stagelink::transport
