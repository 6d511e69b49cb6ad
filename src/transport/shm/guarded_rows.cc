#include "transport/shm/guarded_rows.h"

#include <string>

#include <sched.h>

namespace stagelink::transport {
namespace {

// All lanes are taken only when more threads than lanes copy from one peer; each is done within a
// slice's time.
constexpr int kClaimTries = 100'000;

}  // namespace

std::optional<uint32_t> GuardedRows::claim() const noexcept {
  std::optional<uint32_t> lane = lanes_.claim();
  for (int i = 0; !lane && i < kClaimTries; ++i) {
    ::sched_yield();
    lane = lanes_.claim();
  }
  return lane;
}

void GuardedRows::enter(uint32_t lane, std::span<const CopyItem> items) const noexcept {
  uint64_t rows_mask = 0;
  for (const CopyItem& item : items) rows_mask |= row_bit(rows_[item.remote_index].row);
  lanes_.enter(lane, rows_mask);
}

Status GuardedRows::check(std::span<const CopyItem> items) const {
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

Status GuardedRows::no_lane() {
  return Status(Reason::kBusy, "more threads copy from one peer than it has lanes");
}

Status GuardedRows::peer_has_ended() {
  return Status(Reason::kPeerLost, "the peer ended before or during the copy");
}

}  // namespace stagelink::transport
