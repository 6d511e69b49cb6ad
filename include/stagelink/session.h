#pragma once

#include <memory>

#include "stagelink/range_list.h"
#include "stagelink/result.h"
#include "stagelink/transfer.h"

namespace stagelink {

namespace engine {
class SessionState;
}

// A peer, local regions and remote regions, prepared for transfers: descriptors checked, memory
// mapped, routes chosen. It keeps its local regions registered.
//
// Thread-safety: all methods may run at the same time.
class Session {
 public:
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  // Submit one batch and return without waiting for it (a batch of at most inline_bytes over mapped
  // memory is complete on return). All or nothing: a range that is out of bounds refuses the whole
  // batch before a byte moves. Errors: invalid_argument (out_of_bounds, overflow) names the range;
  // busy (too_many_transfers); limit (too_many_ranges); superseded; not_registered; permission;
  // peer_lost; invalid_state. `timeout` is the transfer's deadline; zero means transfer_timeout.
  Result<Transfer> read(const RangeList& ranges, Duration timeout = Duration::zero());
  Result<Transfer> write(const RangeList& ranges, Duration timeout = Duration::zero());
  Result<Transfer> read(const StridedRange& range, Duration timeout = Duration::zero());
  Result<Transfer> write(const StridedRange& range, Duration timeout = Duration::zero());

  // One line per remote region: the transport that serves it and why it was chosen.
  std::string explain() const;

 private:
  friend class Peer;
  explicit Session(std::shared_ptr<engine::SessionState> state) noexcept;
  std::shared_ptr<engine::SessionState> state_;
};

}  // namespace stagelink
