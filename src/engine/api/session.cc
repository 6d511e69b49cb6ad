#include "stagelink/session.h"

#include <utility>

#include "base/fork_guard.h"
#include "engine/batch/session_state.h"
#include "engine/core.h"
#include "engine/link/peer_state.h"

namespace stagelink {

using transport::Direction;

Session::Session(std::shared_ptr<engine::SessionState> state) noexcept : state_(std::move(state)) {}
Session::Session(Session&&) noexcept = default;

Session& Session::operator=(Session&& other) noexcept {
  Session old(std::move(other));
  state_.swap(old.state_);
  return *this;
}

Session::~Session() {
  if (state_ != nullptr && ForkGuard::forked(state_->peer().core().fork_token())) {
    new std::shared_ptr<engine::SessionState>(std::move(state_));  // The parent's.
  }
}

Result<Transfer> Session::read(const RangeList& ranges, Duration timeout) {
  auto state = state_->submit(ranges, Direction::kRead, timeout);
  if (!state.ok()) return state.status();
  return Transfer(*state);
}

Result<Transfer> Session::write(const RangeList& ranges, Duration timeout) {
  auto state = state_->submit(ranges, Direction::kWrite, timeout);
  if (!state.ok()) return state.status();
  return Transfer(*state);
}

Result<Transfer> Session::read(const StridedRange& range, Duration timeout) {
  auto state = state_->submit(range, Direction::kRead, timeout);
  if (!state.ok()) return state.status();
  return Transfer(*state);
}

Result<Transfer> Session::write(const StridedRange& range, Duration timeout) {
  auto state = state_->submit(range, Direction::kWrite, timeout);
  if (!state.ok()) return state.status();
  return Transfer(*state);
}

std::string Session::explain() const { return state_->explain(); }

}  // namespace stagelink
