#pragma once

#include <memory>
#include <span>
#include <vector>

#include "transport/cma/cma_owner.h"
#include "transport/cma/iovec_pair.h"
#include "transport/shm/guarded_rows.h"
#include "transport/transport.h"

namespace stagelink::transport {

// Copies from and to memory of another process that is not mapped here: process_vm_readv and
// process_vm_writev, 1024 pieces a call, inside an access lane.
//
// A read takes the owner's identity along as its last piece and looks at it, at the pidfd and at
// the rows afterwards: bytes of another process or of a later region are never a success. A write
// looks at the identity before and after. Foreign memory is never reported as written; that nothing
// is written to it rests on the pid not being given out again between the look and the call, which
// the kernel does not do before it has gone through all other pids.
//
// Thread-safety: copy() may run in many threads at the same time.
class CmaTransport final : public CopyTransport {
 public:
  // Pieces of one read, beside the identity.
  static constexpr size_t kMostItems = IovecPair::kMost - 1;

  // `rows[i]` guards remote_index i. The lanes and the flag outlive the transport.
  CmaTransport(std::shared_ptr<CmaOwner> owner, AccessLanes& lanes,
               const std::atomic<bool>& peer_lost, std::vector<GuardedRow> rows) noexcept;

  // Errors: superseded; peer_lost (restarted: another program has that pid); not_registered (the
  // memory is not mapped); busy (the kernel has begun to refuse).
  Status copy(std::span<const CopyItem> items, Direction direction) override;

 private:
  Status read(std::span<const CopyItem> items) const;
  Status write(std::span<const CopyItem> items) const;
  Status look_at_owner() const;
  Status move(IovecPair& pieces, Direction direction) const;
  Status failure(int error) const;

  const std::shared_ptr<CmaOwner> owner_;
  const GuardedRows rows_;
};

}  // namespace stagelink::transport
