#include "connector/moriio/io/transfer_status.h"

#include <algorithm>
#include <utility>

#include "base/deadline.h"

namespace stagelink::moriio {
namespace {

using std::chrono::milliseconds;

// A transfer wakes its waiter by itself. Only what another thread sets by hand while a transfer
// runs, and the end of another transfer that is waited for too, is noticed after such a while.
constexpr Duration kLookAgain = milliseconds(20);
constexpr Duration kLookAtOthers = milliseconds(2);

Deadline deadline_of(Duration limit) {
  return Deadline::in(limit < Duration::zero() ? Deadline::kLongest : limit);
}

}  // namespace

StatusCode TransferStatus::code() { return wait_for(Duration::zero()); }

std::string TransferStatus::message() {
  (void)code();
  MutexLock lock(mutex_);
  return message_;
}

void TransferStatus::update(StatusCode code, std::string message) {
  MutexLock lock(mutex_);
  update_locked(code, std::move(message));
}

void TransferStatus::update_locked(StatusCode code, std::string message) {
  if (is_failure(code_)) return;
  code_ = code;
  message_ = std::move(message);
  changed_.notify_all();
}

void TransferStatus::set_code(StatusCode code) {
  MutexLock lock(mutex_);
  code_ = code;
  changed_.notify_all();
}

void TransferStatus::set_message(std::string message) {
  MutexLock lock(mutex_);
  message_ = std::move(message);
}

StatusCode TransferStatus::wait() { return wait_for(Deadline::kLongest); }

StatusCode TransferStatus::wait_for(Duration limit) {
  const Deadline deadline = deadline_of(limit);
  for (bool looked = false;; looked = true) {
    TransferRef running;
    {
      MutexLock lock(mutex_);
      if (code_ != StatusCode::kInProgress) return code_;
      if (looked && deadline.passed()) return code_;
      running = transfer_;
      if (running == nullptr) changed_.wait_until(mutex_, deadline);
    }
    if (running == nullptr) continue;
    const Duration piece = std::min(deadline.left(), kLookAgain);
    if (running->poll(piece) != TransferPhase::kRunning) settle(*running);
  }
}

StatusCode TransferStatus::cancel() {
  if (const TransferRef running = transfer(); running != nullptr) {
    running->cancel();
    settle(*running);
  }
  return code();
}

bool TransferStatus::is_over() {
  const TransferRef running = transfer();
  if (running == nullptr) return true;
  if (running->poll() == TransferPhase::kRunning) return false;
  settle(*running);
  return true;
}

void TransferStatus::follow(Transfer transfer) {
  // What is small has been copied already.
  if (transfer.poll() != TransferPhase::kRunning) {
    const Status outcome = transfer.status();
    return update(status_code_of(outcome.reason()), status_message_of(outcome));
  }
  auto ref = std::make_shared<Transfer>(std::move(transfer));
  MutexLock lock(mutex_);
  transfer_ = std::move(ref);
  update_locked(StatusCode::kInProgress, "");
}

TransferStatus::TransferRef TransferStatus::transfer() const {
  MutexLock lock(mutex_);
  return transfer_;
}

void TransferStatus::settle(Transfer& transfer) {
  const Status outcome = transfer.status();
  TransferRef done;  // Goes after the lock.
  MutexLock lock(mutex_);
  if (transfer_.get() != &transfer) return;  // Another thread was faster.
  done.swap(transfer_);
  update_locked(status_code_of(outcome.reason()), status_message_of(outcome));
}

StatusCode wait_all(std::span<const StatusRef> statuses, Duration limit) {
  const Deadline deadline = deadline_of(limit);
  for (;;) {
    StatusCode rest = StatusCode::kSuccess;
    StatusRef pending;
    size_t pending_count = 0;
    for (const StatusRef& status : statuses) {
      const StatusCode code = status->code();
      if (is_failure(code)) return code;
      if (code == StatusCode::kInit) rest = code;
      if (code != StatusCode::kInProgress) continue;
      if (pending_count++ == 0) pending = status;
    }
    if (pending == nullptr) return rest;
    if (deadline.passed()) return StatusCode::kInProgress;
    const Duration piece = pending_count == 1 ? kLookAgain : kLookAtOthers;
    (void)pending->wait_for(std::min(deadline.left(), piece));
  }
}

}  // namespace stagelink::moriio
