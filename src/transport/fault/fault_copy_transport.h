#pragma once

#include <functional>
#include <memory>
#include <span>

#include "transport/fault/fault_injector.h"
#include "transport/transport.h"

namespace stagelink::transport {

// Wraps a transport that copies, with one decision for each slice:
//
//   drop   nothing is copied and the answer is timed_out, at once: a copying thread has no deadline
//          to wait for, and what a lost slice does to its transfer is to end it timed_out.
//   delay  the copying thread sleeps for at most FaultInjector::kMaxDelayMs, then copies.
//   cut    nothing is copied, `cut` is called, the answer is peer_lost (connection_cut).
//   flip   after the copy one bit at the destination is inverted; the answer is success.
//
// Thread-safety: as that of the transport inside, if `cut` may be called by any thread.
class FaultCopyTransport final : public CopyTransport {
 public:
  FaultCopyTransport(std::shared_ptr<CopyTransport> inside, std::shared_ptr<FaultInjector> injector,
                     std::function<void(const Status&)> cut);
  Status copy(std::span<const CopyItem> items, Direction direction) override;

 private:
  const std::shared_ptr<CopyTransport> inside_;
  const std::shared_ptr<FaultInjector> injector_;
  const std::function<void(const Status&)> cut_;
};

}  // namespace stagelink::transport
