#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/deadline.h"
#include "connector/moriio/move/move.h"

namespace stagelink::moriio {

// The batches of one transfer: those still to be posted and those on their way. A target that has
// no room is tried again after 1 ms, doubling up to 50 ms.
//
// Thread-safety: one call at a time.
class Flight {
 public:
  using Clock = Deadline::Clock;

  explicit Flight(MoveDirection direction) noexcept : direction_(direction) {}

  void add(std::vector<Move> moves);
  // Posts what can be posted now. Errors: what a target refused for good.
  Status post(Clock::time_point now, Duration timeout);
  // When to call post() again; meaningful while waiting_to_post().
  Clock::time_point retry_at() const noexcept { return retry_at_; }
  bool waiting_to_post() const noexcept { return !unposted_.empty(); }

  // Looks at all batches, at the first one for up to `patience`. Errors: that of the first batch
  // that failed; the others are still to be cancelled.
  Status poll(Duration patience);
  bool in_flight() const noexcept { return !posted_.empty(); }
  bool idle() const noexcept { return posted_.empty() && unposted_.empty(); }

  // Drops what has not been posted and ends the rest. When it returns Ok nothing touches memory for
  // this transfer any more. Errors: of the first batch that could not be ended; call it again.
  Status cancel();

  uint64_t bytes_landed() const noexcept { return bytes_landed_; }
  uint32_t batches() const noexcept { return batches_; }

 private:
  struct Posted {
    std::unique_ptr<PostedMove> move;
    uint64_t bytes;
  };

  const MoveDirection direction_;
  std::deque<Move> unposted_;
  std::vector<Posted> posted_;
  Clock::time_point retry_at_{};
  Duration backoff_{};
  uint64_t bytes_landed_ = 0;
  uint32_t batches_ = 0;
};

}  // namespace stagelink::moriio
