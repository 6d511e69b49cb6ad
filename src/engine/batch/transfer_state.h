#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/deadline.h"
#include "base/mutex.h"
#include "engine/batch/plan.h"
#include "stagelink/transfer.h"
#include "transport/transport.h"

namespace stagelink::engine {

class EngineCore;
class PeerState;
class TransferPool;

// One batch from submission to its end. Lives in the engine's pool and is reused.
//
// Invariants:
// 1. The batch has a copied part (slices), a posted part, both or none; parts_left_ counts those
// that
//    have not ended. The last one to end calls finish(), once.
// 2. Slice i is run by whoever draws i from next_slice_. Every index below slices() is either run
// or
//    given up exactly once, and counted in slices_done_.
// 3. After the first failure no slice starts. A part ends only when nothing touches memory for it.
// 4. phase_ leaves kRunning in finish() and nowhere else.
// 5. A reference is held by each Transfer handle, by the batch itself until finish(), and by the
// copy
//    thread's queue.
//
// Thread-safety: all public methods may run at the same time, except prepare() and start().
class TransferState final : public transport::PostedRequest {
 public:
  explicit TransferState(TransferPool& pool) noexcept;

  // --- Set up by the submitter, who holds the only reference. ---
  Plan& plan() noexcept { return plan_; }
  struct Setup {
    std::shared_ptr<const SessionView> view;             // Keeps the peer and the engine.
    std::shared_ptr<transport::PostedTransport> poster;  // Null unless the plan has posted items.
    transport::Direction direction = transport::Direction::kRead;
    std::chrono::steady_clock::time_point started;
    Deadline deadline = Deadline::in(Duration::zero());
  };
  void prepare(Setup setup);
  // Pins the local regions and sets the batch off. On failure nothing has started.
  Status start();

  // --- For handles. ---
  Status wait(const Deadline& until);
  Status wait_to_deadline() { return wait(setup_.deadline); }
  TransferPhase poll(const Deadline& until);
  TransferPhase cancel();
  TransferPhase phase() const noexcept;
  Status status() const SL_EXCLUDES(mutex_);
  uint64_t bytes() const noexcept { return total_bytes_all_; }
  bool forked() const noexcept;
  // The last handle goes while the batch still runs: somebody must go on with it.
  void detach();
  // Sends `payload` when this transfer has ended: at once if it has.
  Status notify_after(std::shared_ptr<PeerState> peer, std::vector<std::byte> payload)
      SL_EXCLUDES(mutex_);

  // --- For the engine. ---
  void end_early(Status why) SL_EXCLUDES(mutex_);
  // Called by the engine's timer: a batch that nobody waits for goes on, and ends at its deadline.
  void look_after();
  PeerState& peer() const noexcept { return *setup_.view->peer; }
  // One slice on this thread. False if none is left to start.
  bool run_slice();
  bool slices_left() const noexcept {
    return next_slice_.load(std::memory_order_relaxed) < plan_.slices();
  }
  // The processor of the thread that waits and copies, or -1.
  int attended_cpu() const noexcept { return attended_cpu_.load(std::memory_order_relaxed); }
  bool overdue() const noexcept { return setup_.deadline.passed(); }

  void ref() noexcept { refs_.fetch_add(1, std::memory_order_relaxed); }
  bool ref_if_used() noexcept;
  void unref() noexcept;

  void on_done(Status status) override;

  // Link of the copy thread's queue and of the pool.
  TransferState* queue_next = nullptr;
  std::atomic<bool> queued{false};

 private:
  friend class TransferPool;
  struct AfterNotice {
    std::shared_ptr<PeerState> peer;
    std::vector<std::byte> payload;
  };

  EngineCore& core() const noexcept;
  void attend(const Deadline& until);
  void sleep_until_ended(const Deadline& until);
  void record_failure(Status why) SL_EXCLUDES(mutex_);
  void give_up_slices();
  void slices_ended(uint32_t count);
  void part_ended();
  void finish() SL_EXCLUDES(mutex_);
  void count_outcome(const Status& outcome);
  void unpin_locals(size_t count) noexcept;

  TransferPool& pool_;
  std::atomic<uint32_t> refs_{0};
  std::atomic<bool> active_{false};  // From start() until the last reference goes.

  // Written before start(), constant until the state is reused.
  Setup setup_;
  Plan plan_;
  uint64_t total_bytes_all_ = 0;
  uint64_t fork_token_ = 0;

  std::atomic<uint32_t> phase_{0};  // TransferPhase; futex.
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<uint32_t> next_slice_{0};
  std::atomic<uint32_t> slices_done_{0};
  std::atomic<uint32_t> parts_left_{0};
  std::atomic<bool> failed_{false};
  std::atomic<int> attended_cpu_{-1};

  mutable Mutex mutex_;
  Status failure_ SL_GUARDED_BY(mutex_);
  bool ended_ SL_GUARDED_BY(mutex_) = false;
  std::vector<AfterNotice> after_ SL_GUARDED_BY(mutex_);
};

// All transfer states of an engine; as many as may be in flight.
//
// Thread-safety: all methods may run at the same time.
class TransferPool {
 public:
  explicit TransferPool(uint32_t capacity);
  ~TransferPool();
  TransferPool(const TransferPool&) = delete;
  TransferPool& operator=(const TransferPool&) = delete;

  // With one reference. Errors: busy (too_many_transfers).
  Result<TransferState*> take() SL_EXCLUDES(mutex_);
  void give_back(TransferState& state) noexcept SL_EXCLUDES(mutex_);
  // References to all that have been set off and not let go; the caller unrefs each.
  std::vector<TransferState*> active() SL_EXCLUDES(mutex_);

 private:
  std::vector<TransferState*> used() SL_EXCLUDES(mutex_);

  const uint32_t capacity_;
  Mutex mutex_;
  std::vector<std::unique_ptr<TransferState>> all_ SL_GUARDED_BY(mutex_);  // Grows to capacity_.
  std::vector<TransferState*> free_ SL_GUARDED_BY(mutex_);
};

}  // namespace stagelink::engine
