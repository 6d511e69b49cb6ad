#pragma once

#include <cstdint>
#include <memory>

#include "stagelink/engine_options.h"
#include "stagelink/result.h"

namespace stagelink {

namespace engine {
class TransferState;
}

enum class TransferPhase : uint8_t { kRunning, kSucceeded, kFailed };

// The handle of a submitted batch. The transfer ends exactly once: succeeded, or failed with one
// Status. Dropping the handle lets the transfer run on to its end or its own deadline.
//
// Thread-safety: all methods may run at the same time.
class Transfer {
 public:
  Transfer(Transfer&&) noexcept;
  Transfer& operator=(Transfer&&) noexcept;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  ~Transfer();

  // Copies what can be copied and sleeps for the rest. When it returns, the transfer has ended and
  // the local memory is the caller's again: past `timeout` (or the deadline given at submission,
  // whichever comes first) the transfer is cancelled and the answer is timed_out.
  Status wait(Duration timeout);
  Status wait();  // Up to the deadline given at submission.

  // Looks, copying for at most `timeout` if there is something to copy; never cancels.
  TransferPhase poll(Duration timeout = Duration::zero());

  // Ends the transfer: when it returns (within about a millisecond) nothing touches the local
  // memory any more. Ok if it was cancelled or had failed already; the phase tells whether it had
  // succeeded before.
  TransferPhase cancel();

  // The outcome: Ok also while running. Errors: timed_out, cancelled, superseded, peer_lost,
  // unreachable, corrupt, permission, not_registered.
  Status status() const;
  uint64_t bytes() const noexcept;

 private:
  friend class Session;
  friend class Peer;
  explicit Transfer(engine::TransferState* state) noexcept : state_(state) {}
  engine::TransferState* state_;  // Counted reference; null after a move.
};

}  // namespace stagelink
