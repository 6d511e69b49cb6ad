#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/mutex.h"
#include "connector/moriio/io/codes.h"
#include "stagelink/transfer.h"

namespace stagelink::moriio {

// What became of one transfer: INIT, IN_PROGRESS, then SUCCESS or an error with a message. The
// first error stays. Shared between the user and the engine, which keeps it until the transfer is
// over: to drop it with work in flight is safe, and the work goes on.
//
// Thread-safety: all methods may run at the same time.
class TransferStatus {
 public:
  TransferStatus() = default;
  TransferStatus(const TransferStatus&) = delete;
  TransferStatus& operator=(const TransferStatus&) = delete;

  // These look at the transfer first, if there is one; they never sleep.
  StatusCode code() SL_EXCLUDES(mutex_);
  std::string message() SL_EXCLUDES(mutex_);
  bool init() { return code() == StatusCode::kInit; }
  bool in_progress() { return code() == StatusCode::kInProgress; }
  bool succeeded() { return code() == StatusCode::kSuccess; }
  bool failed() { return is_failure(code()); }

  // Ignored once there is an error. Wakes waiters.
  void update(StatusCode code, std::string message) SL_EXCLUDES(mutex_);
  // Each replaces one half, whatever it was. Wakes waiters.
  void set_code(StatusCode code) SL_EXCLUDES(mutex_);
  void set_message(std::string message) SL_EXCLUDES(mutex_);

  // Returns when the status is no longer IN_PROGRESS (at once if it is INIT), or at the limit: then
  // the answer is IN_PROGRESS and the transfer runs on. Copies while it waits.
  StatusCode wait_for(Duration limit) SL_EXCLUDES(mutex_);
  // Without a limit of its own. A transfer ends by its own deadline, so this returns.
  StatusCode wait() SL_EXCLUDES(mutex_);

  // Ends the transfer: when it returns, nothing touches the local memory any more. The code tells
  // whether it had succeeded before. Without a transfer it changes nothing.
  StatusCode cancel() SL_EXCLUDES(mutex_);

  // For the engine: this transfer decides from now on. It is let go of as soon as it is known to be
  // over.
  void follow(Transfer transfer) SL_EXCLUDES(mutex_);
  // For the engine: true, and the transfer let go of, if none runs any more.
  bool is_over() SL_EXCLUDES(mutex_);

 private:
  using TransferRef = std::shared_ptr<Transfer>;
  TransferRef transfer() const SL_EXCLUDES(mutex_);
  void settle(Transfer& transfer) SL_EXCLUDES(mutex_);
  void update_locked(StatusCode code, std::string message) SL_REQUIRES(mutex_);

  mutable Mutex mutex_;
  CondVar changed_;
  StatusCode code_ SL_GUARDED_BY(mutex_) = StatusCode::kInit;
  std::string message_ SL_GUARDED_BY(mutex_);
  TransferRef transfer_ SL_GUARDED_BY(mutex_);
};

using StatusRef = std::shared_ptr<TransferStatus>;

// Of all: the first error there is, though an earlier one may still be in progress; SUCCESS when
// all have succeeded, or there are none; INIT if nothing runs but some were never begun;
// IN_PROGRESS at the limit. A negative limit means none.
StatusCode wait_all(std::span<const StatusRef> statuses, Duration limit);

}  // namespace stagelink::moriio
