#pragma once

#include <cstdint>
#include <optional>

#include "base/deadline.h"
#include "base/mutex.h"
#include "store/yuanrong/channel/protocol.h"

namespace stagelink::store::yuanrong {

// Which lanes of a page are in use by this process. Calls that wait for a put take the upper lanes,
// and never all of them, so that those that do not wait always get through.
//
// Thread-safety: all methods may run at the same time.
class LanePool {
 public:
  explicit LanePool(Page& page) noexcept : page_(page) {}

  struct Taken {
    uint32_t lane = 0;
    bool first_use = false;  // The broker must be told to serve it.
  };
  // Nothing once the deadline has passed or end() was called.
  std::optional<Taken> take(bool waits, const Deadline& deadline);
  void give_back(uint32_t lane);
  // The broker still works for a caller that has gone; the lane comes back when it has ended.
  void abandon(uint32_t lane);
  void end();

 private:
  static constexpr uint32_t kLanesForWaiting = 48;  // 1 to 48.

  std::optional<uint32_t> find(bool waits) SL_REQUIRES(mutex_);
  void reclaim() SL_REQUIRES(mutex_);

  Page& page_;
  Mutex mutex_;
  CondVar freed_;
  uint64_t busy_ SL_GUARDED_BY(mutex_) = 0;  // Bits.
  uint64_t abandoned_ SL_GUARDED_BY(mutex_) = 0;
  uint64_t used_ SL_GUARDED_BY(mutex_) = 1;  // The broker serves lane 0 from the start.
  bool ended_ SL_GUARDED_BY(mutex_) = false;
};

}  // namespace stagelink::store::yuanrong
