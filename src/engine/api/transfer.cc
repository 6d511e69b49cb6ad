#include "stagelink/transfer.h"

#include <utility>

#include "base/fork_guard.h"
#include "engine/batch/transfer_state.h"

namespace stagelink {

Transfer::Transfer(Transfer&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}

Transfer& Transfer::operator=(Transfer&& other) noexcept {
  Transfer old(std::move(other));
  std::swap(state_, old.state_);
  return *this;
}

Transfer::~Transfer() {
  if (state_ == nullptr || state_->forked()) return;
  state_->detach();
  state_->unref();
}

Status Transfer::wait(Duration timeout) {
  if (state_->forked()) return forked_status("the transfer");
  return state_->wait(Deadline::in(timeout));
}

Status Transfer::wait() {
  if (state_->forked()) return forked_status("the transfer");
  return state_->wait_to_deadline();
}

TransferPhase Transfer::poll(Duration timeout) {
  if (state_->forked()) return TransferPhase::kFailed;
  return state_->poll(Deadline::in(timeout));
}

TransferPhase Transfer::cancel() {
  if (state_->forked()) return TransferPhase::kFailed;
  return state_->cancel();
}

Status Transfer::status() const {
  if (state_->forked()) return forked_status("the transfer");
  return state_->status();
}

uint64_t Transfer::bytes() const noexcept { return state_->bytes(); }

}  // namespace stagelink
