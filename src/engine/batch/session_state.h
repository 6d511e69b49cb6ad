#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "engine/batch/session_view.h"
#include "engine/batch/transfer_state.h"
#include "stagelink/session.h"

namespace stagelink::engine {

class PeerState;

// A prepared pair of region lists; see Session.
//
// Thread-safety: all methods may run at the same time.
class SessionState {
 public:
  static Result<std::shared_ptr<SessionState>> create(
      std::shared_ptr<PeerState> peer, std::vector<std::shared_ptr<memory::RegionRecord>> local,
      std::span<const RegionDesc> remote);
  static Result<std::shared_ptr<SessionState>> create_by_address(
      std::shared_ptr<PeerState> peer, std::vector<std::shared_ptr<memory::RegionRecord>> local);

  // The returned state carries one reference, the caller's.
  Result<TransferState*> submit(const RangeList& ranges, transport::Direction direction,
                                Duration timeout);
  Result<TransferState*> submit(const StridedRange& range, transport::Direction direction,
                                Duration timeout);
  std::string explain() const;
  PeerState& peer() const noexcept { return *peer_; }

  // Lets go of regions that their owners have deregistered (and of mappings with them).
  void drop_stale() SL_EXCLUDES(mutex_);
  void drop_local(const memory::RegionRecord& record) SL_EXCLUDES(mutex_);
  void drop_all() SL_EXCLUDES(mutex_);

 private:
  using View = std::shared_ptr<const SessionView>;
  explicit SessionState(std::shared_ptr<PeerState> peer) noexcept;
  template <typename PlanFn>
  Result<TransferState*> submit_planned(transport::Direction direction, Duration timeout,
                                        PlanFn&& plan);
  Status set_off(TransferState& state, const View& view, transport::Direction direction,
                 Duration timeout);
  View view() const SL_EXCLUDES(mutex_);
  // Builds the view's transports and makes it current.
  void adopt(std::unique_ptr<SessionView> next) SL_EXCLUDES(mutex_);
  std::unique_ptr<SessionView> copy_view() const SL_EXCLUDES(mutex_);
  // By address: reads the owner's table anew.
  Status refresh() SL_EXCLUDES(mutex_);

  const std::shared_ptr<PeerState> peer_;
  mutable Mutex mutex_;
  View view_ SL_GUARDED_BY(mutex_);
};

}  // namespace stagelink::engine
