#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "memory/copy_kernel.h"
#include "transport/shm/access_lanes.h"
#include "transport/transport.h"
#include "wire/table_layout.h"

namespace stagelink::transport {

// A row of the owner's region table and the state it must have while we copy.
struct GuardedRow {
  const wire::TableEntry* entry = nullptr;  // Null: not reachable by shm.
  uint64_t live_state = 0;
  uint32_t row = 0;
};

// Copies from and to mapped memory of one peer, inside an access lane.
//
// Thread-safety: copy() may run in many threads at the same time.
class ShmTransport final : public CopyTransport {
 public:
  // `rows[i]` guards remote_index i. All that is referred to outlives the transport.
  ShmTransport(AccessLanes& lanes,
               const std::atomic<bool>& peer_lost,
               const memory::CopyKernel& kernel,
               std::vector<GuardedRow> rows) noexcept;

  Status copy(std::span<const CopyItem> items, Direction direction) override;

 private:
  Status check_rows(std::span<const CopyItem> items) const;
  void move_bytes(std::span<const CopyItem> items, Direction direction) const noexcept;

  AccessLanes& lanes_;
  const std::atomic<bool>& peer_lost_;
  const memory::CopyKernel& kernel_;
  const std::vector<GuardedRow> rows_;
};

}  // namespace stagelink::transport
