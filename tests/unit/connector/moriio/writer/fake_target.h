#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "connector/moriio/move/move.h"

namespace stagelink::moriio::test {

// A target whose batches end when the test says so.
class FakeTarget final : public MoveTarget {
 public:
  struct State {
    Mutex mutex;
    TransferPhase phase SL_GUARDED_BY(mutex) = TransferPhase::kRunning;
    Status why SL_GUARDED_BY(mutex);
    bool may_cancel SL_GUARDED_BY(mutex) = true;
    bool cancelled SL_GUARDED_BY(mutex) = false;
  };

  explicit FakeTarget(uint64_t identity = 1) : identity_(identity) {}

  Result<std::unique_ptr<PostedMove>> post(MoveDirection, const Ranges& ranges, Duration) override {
    MutexLock lock(mutex_);
    if (busy_ > 0) {
      --busy_;
      ++refused_;
      return Status(Reason::kTooManyTransfers, "SQ full");
    }
    if (!refusal_.ok()) return refusal_;
    auto state = std::make_shared<State>();
    {
      MutexLock state_lock(state->mutex);
      if (land_at_once_) state->phase = TransferPhase::kSucceeded;
    }
    batches_.push_back({ranges, state});
    return std::unique_ptr<PostedMove>(std::make_unique<FakeMove>(state));
  }
  uint64_t identity() const noexcept override { return identity_; }

  void land_at_once() {
    set([](FakeTarget& self) { self.land_at_once_ = true; });
  }
  void busy(int times) {
    set([&](FakeTarget& self) { self.busy_ = times; });
  }
  void refuse(Status why) {
    set([&](FakeTarget& self) { self.refusal_ = std::move(why); });
  }

  size_t posted() {
    MutexLock lock(mutex_);
    return batches_.size();
  }
  int refused() {
    MutexLock lock(mutex_);
    return refused_;
  }
  Ranges ranges(size_t batch) {
    MutexLock lock(mutex_);
    return batches_[batch].first;
  }
  void land(size_t batch) { end(batch, TransferPhase::kSucceeded, {}); }
  void fail(size_t batch, Status why) { end(batch, TransferPhase::kFailed, std::move(why)); }
  void may_cancel(size_t batch, bool may) {
    const auto state = state_of(batch);
    MutexLock lock(state->mutex);
    state->may_cancel = may;
  }
  bool cancelled(size_t batch) {
    const auto state = state_of(batch);
    MutexLock lock(state->mutex);
    return state->cancelled;
  }

 private:
  class FakeMove final : public PostedMove {
   public:
    explicit FakeMove(std::shared_ptr<State> state) : state_(std::move(state)) {}
    TransferPhase poll(Duration) override {
      MutexLock lock(state_->mutex);
      return state_->phase;
    }
    Status cancel() override {
      MutexLock lock(state_->mutex);
      if (!state_->may_cancel) return {Reason::kUnsupported, "not now"};
      state_->cancelled = true;
      return {};
    }
    Status status() const override {
      MutexLock lock(state_->mutex);
      return state_->why;
    }

   private:
    const std::shared_ptr<State> state_;
  };

  template <typename Change>
  void set(Change&& change) {
    MutexLock lock(mutex_);
    change(*this);
  }
  std::shared_ptr<State> state_of(size_t batch) {
    MutexLock lock(mutex_);
    return batches_[batch].second;
  }
  void end(size_t batch, TransferPhase phase, Status why) {
    const auto state = state_of(batch);
    MutexLock lock(state->mutex);
    state->phase = phase;
    state->why = std::move(why);
  }

  const uint64_t identity_;
  Mutex mutex_;
  bool land_at_once_ = false;
  int busy_ = 0;
  int refused_ = 0;
  Status refusal_;
  std::vector<std::pair<Ranges, std::shared_ptr<State>>> batches_;
};

}  // namespace stagelink::moriio::test
