#pragma once

#include <span>

#include "memory/copy_kernel.h"
#include "transport/shm/guarded_rows.h"
#include "transport/transport.h"

namespace stagelink::transport {

// Copies from and to mapped memory of one peer, inside an access lane.
//
// Thread-safety: copy() may run in many threads at the same time.
class ShmTransport final : public CopyTransport {
 public:
  // `rows[i]` guards remote_index i. All that is referred to outlives the transport.
  ShmTransport(AccessLanes& lanes, const std::atomic<bool>& peer_lost,
               const memory::CopyKernel& kernel, std::vector<GuardedRow> rows) noexcept;

  Status copy(std::span<const CopyItem> items, Direction direction) override;

 private:
  void move_bytes(std::span<const CopyItem> items, Direction direction) const noexcept;

  const memory::CopyKernel& kernel_;
  const GuardedRows rows_;
};

}  // namespace stagelink::transport
