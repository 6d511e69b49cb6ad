#include "transport/shm/shm_transport.h"

#include <string>
#include <utility>

#include <sched.h>

namespace stagelink::transport {
namespace {

// All lanes are taken only when more threads than lanes copy from one peer; each is done within a
// slice's time.
constexpr int kClaimTries = 100'000;

}  // namespace

ShmTransport::ShmTransport(AccessLanes& lanes,
                           const std::atomic<bool>& peer_lost,
                           const memory::CopyKernel& kernel,
                           std::vector<GuardedRow> rows) noexcept
    : lanes_(lanes), peer_lost_(peer_lost), kernel_(kernel), rows_(std::move(rows)) {}

Status ShmTransport::copy(std::span<const CopyItem> items, Direction direction) {
  std::optional<uint32_t> lane = lanes_.claim();
  for (int i = 0; !lane && i < kClaimTries; ++i) {
    ::sched_yield();
    lane = lanes_.claim();
  }
  if (!lane) return Status(Reason::kBusy, "more threads copy from one peer than it has lanes");

  uint64_t rows_mask = 0;
  for (const CopyItem& item : items) rows_mask |= row_bit(rows_[item.remote_index].row);
  lanes_.enter(*lane, rows_mask);
  // Sequentially consistent, after the lane's store: whoever sets peer_lost_ looks at the lanes
  // before the connection ends, and the owner waits for lanes only as long as it stands.
  Status status =
      peer_lost_.load() ? Status(Reason::kPeerLost, "the peer has ended") : check_rows(items);
  if (status.ok()) {
    move_bytes(items, direction);
    status = check_rows(items);
  }
  lanes_.leave(*lane);
  if (status.ok() && peer_lost_.load(std::memory_order_relaxed)) {
    // Relaxed: a hint that may come late; the generation checks carry the guarantee.
    return Status(Reason::kPeerLost, "the peer ended during the copy");
  }
  return status;
}

Status ShmTransport::check_rows(std::span<const CopyItem> items) const {
  uint32_t last = kByAddress;
  for (const CopyItem& item : items) {
    if (item.remote_index == last) continue;
    last = item.remote_index;
    const GuardedRow& guard = rows_[last];
    // Sequentially consistent: after the lane's store (enter) and after the copy's loads.
    if (guard.entry->state.load(std::memory_order_seq_cst) != guard.live_state) {
      return Status(Reason::kSuperseded,
                    "remote region in row " + std::to_string(guard.row) +
                        " was deregistered by its owner; ask the owner for its descriptor again");
    }
  }
  return Status();
}

void ShmTransport::move_bytes(std::span<const CopyItem> items, Direction direction) const noexcept {
  if (direction == Direction::kRead) {
    kernel_.copy_many(items.size(), [&](size_t i) {
      return memory::CopyPiece{items[i].local, reinterpret_cast<const void*>(items[i].remote),
                               items[i].bytes};
    });
  } else {
    kernel_.copy_many(items.size(), [&](size_t i) {
      return memory::CopyPiece{reinterpret_cast<void*>(items[i].remote), items[i].local,
                               items[i].bytes};
    });
  }
  memory::copy_fence();
  // Acquire: the loads of the copy come before those of the second check, also on weakly ordered
  // processors.
  std::atomic_thread_fence(std::memory_order_acquire);
}

}  // namespace stagelink::transport
