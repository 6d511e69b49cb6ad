#include "engine/batch/transfer_state.h"

#include <string>
#include <utility>

#include <sched.h>

#include "base/fork_guard.h"
#include "base/futex.h"
#include "base/log.h"
#include "engine/core.h"
#include "engine/link/peer_state.h"

namespace stagelink::engine {
namespace {

constexpr size_t kMaxAfterNotices = 64;
// A cancelled batch ends within a slice's time. Beyond this something is wrong, and is said.
constexpr Duration kCancelGrace = std::chrono::seconds(5);

constexpr uint32_t word(TransferPhase phase) noexcept { return static_cast<uint32_t>(phase); }

}  // namespace

TransferState::TransferState(TransferPool& pool) noexcept : pool_(pool) {}

void TransferState::prepare(Setup setup) {
  setup_ = std::move(setup);
  fork_token_ = core().fork_token();
  // Relaxed: nobody else sees the state before start() publishes it.
  constexpr auto kRelaxed = std::memory_order_relaxed;
  total_bytes_all_ = plan_.copy_bytes + plan_.posted_bytes;
  phase_.store(word(TransferPhase::kRunning), kRelaxed);
  next_slice_.store(0, kRelaxed);
  slices_done_.store(0, kRelaxed);
  failed_.store(false, kRelaxed);
  attended_cpu_.store(-1, kRelaxed);
  parts_left_.store((plan_.slices() != 0 ? 1U : 0U) + (plan_.posted_items.empty() ? 0U : 1U),
                    kRelaxed);
  items = plan_.posted_items;
  remote_regions = setup_.view->posted_refs;
  direction = setup_.direction;
  by_address = setup_.view->by_address;
  total_bytes = plan_.posted_bytes;
  deadline = setup_.deadline;
  MutexLock lock(mutex_);
  failure_ = Status();
  ended_ = false;
  after_.clear();
}

Status TransferState::start() {
  size_t pinned = 0;
  for (const uint32_t index : plan_.locals_used) {
    if (!setup_.view->locals[index].record->gate.try_pin()) {
      unpin_locals(pinned);
      return Status(Reason::kNotRegistered,
                    "local region " + std::to_string(index) + " has been deregistered");
    }
    ++pinned;
  }
  auto& metrics = core().metrics();
  metrics.add(metrics::Counter::kTransfersStarted);
  metrics.add(metrics::Gauge::kTransfersInFlight, 1);
  ref();  // The batch's own.
  // From here on the engine may end the batch early.
  active_.store(true);
  const bool posted = !plan_.posted_items.empty();
  if (plan_.slices() == 0 && !posted) {
    finish();
    return Status();
  }
  if (posted) setup_.poster->post(*this);
  if (plan_.slices() == 0) return Status();
  if (plan_.copy_bytes <= core().options().inline_bytes) {
    while (run_slice()) {
    }
  } else {
    core().copies().offer(*this);
  }
  return Status();
}

Status TransferState::wait(const Deadline& until) {
  if (phase() != TransferPhase::kRunning) return status();
  const Deadline limit = Deadline::earlier(until, setup_.deadline);
  attend(limit);
  sleep_until_ended(limit);
  if (phase() == TransferPhase::kRunning) {
    end_early(Status(Reason::kTimedOut, "transfer of " + std::to_string(total_bytes_all_) +
                                            " bytes with peer " + peer().name() +
                                            " did not end before its deadline"));
    while (phase() == TransferPhase::kRunning) {
      sleep_until_ended(Deadline::in(kCancelGrace));
      if (phase() == TransferPhase::kRunning) {
        log(LogLevel::kError, "transfer", "a cancelled transfer still holds its memory");
      }
    }
  }
  return status();
}

TransferPhase TransferState::poll(const Deadline& until) {
  if (phase() != TransferPhase::kRunning) return phase();
  if (overdue()) {
    (void)wait(setup_.deadline);
    return phase();
  }
  // With nobody else to copy, looking must make progress.
  if (!core().copies().helps()) run_slice();
  attend(until);
  if (!until.passed()) sleep_until_ended(Deadline::earlier(until, setup_.deadline));
  if (slices_left()) core().copies().offer(*this);
  return phase();
}

TransferPhase TransferState::cancel() {
  if (phase() != TransferPhase::kRunning) return phase();
  end_early(Status(Reason::kCancelled, "cancelled by the caller"));
  (void)wait(Deadline::in(kCancelGrace));
  return phase();
}

void TransferState::detach() {
  if (phase() != TransferPhase::kRunning || !slices_left()) return;
  if (!core().copies().enqueue(*this)) attend(setup_.deadline);
}

TransferPhase TransferState::phase() const noexcept {
  return static_cast<TransferPhase>(phase_.load());
}

Status TransferState::status() const {
  if (phase() == TransferPhase::kSucceeded) return Status();
  MutexLock lock(mutex_);
  return failure_;
}

EngineCore& TransferState::core() const noexcept { return peer().core(); }

bool TransferState::forked() const noexcept { return ForkGuard::forked(fork_token_); }

Status TransferState::notify_after(std::shared_ptr<PeerState> peer,
                                   std::vector<std::byte> payload) {
  Reason outcome = Reason::kOk;
  bool pending = false;
  {
    MutexLock lock(mutex_);
    if (!ended_) {
      if (after_.size() >= kMaxAfterNotices) {
        return Status(Reason::kBusy, "too many notifications wait for one transfer");
      }
      after_.push_back({std::move(peer), std::move(payload)});
      pending = true;
    } else {
      outcome = failure_.reason();
    }
  }
  if (!pending) return peer->notify(outcome, payload);
  // The caller may now wait for an answer instead of for this batch.
  if (slices_left()) core().copies().enqueue(*this);
  return Status();
}

void TransferState::look_after() {
  if (phase() != TransferPhase::kRunning) return;
  if (overdue()) {
    end_early(Status(Reason::kTimedOut, "the transfer did not end before its deadline"));
  } else if (slices_left() && attended_cpu() < 0) {
    core().copies().enqueue(*this);
  }
}

// Copies on this thread while there is something to copy.
void TransferState::attend(const Deadline& until) {
  while (slices_left() && !until.passed()) {
    attended_cpu_.store(::sched_getcpu(), std::memory_order_relaxed);
    if (!run_slice()) break;
  }
  attended_cpu_.store(-1);  // Before the caller looks at slices_left(): see CopyPool::work().
}

void TransferState::sleep_until_ended(const Deadline& until) {
  if (phase() != TransferPhase::kRunning) return;
  sleepers_.fetch_add(1);
  while (phase() == TransferPhase::kRunning && !until.passed()) {
    futex_wait(phase_, word(TransferPhase::kRunning), until.left(), FutexScope::kProcess);
  }
  sleepers_.fetch_sub(1);
}

bool TransferState::run_slice() {
  if (!slices_left()) return false;
  const uint32_t slice = next_slice_.fetch_add(1);
  if (slice >= plan_.slices()) return false;
  if (!failed_.load()) {
    const uint32_t first = plan_.slice_starts[slice];
    const uint32_t end = plan_.slice_starts[slice + 1];
    Status status = setup_.view->copier->copy(
        std::span(plan_.copy_items).subspan(first, end - first), setup_.direction);
    if (!status.ok()) end_early(std::move(status));
  }
  slices_ended(1);
  return true;
}

void TransferState::end_early(Status why) {
  record_failure(why);
  give_up_slices();
  if (setup_.poster != nullptr) setup_.poster->cancel(*this, std::move(why));
}

void TransferState::record_failure(Status why) {
  MutexLock lock(mutex_);
  if (ended_ || !failure_.ok()) return;
  failure_ = std::move(why);
  failed_.store(true);
}

void TransferState::give_up_slices() {
  const uint32_t count = plan_.slices();
  const uint32_t drawn = next_slice_.exchange(count);
  if (drawn < count) slices_ended(count - drawn);
}

void TransferState::slices_ended(uint32_t count) {
  if (slices_done_.fetch_add(count) + count == plan_.slices()) part_ended();
}

void TransferState::on_done(Status status) {
  if (!status.ok()) {
    record_failure(status);
    give_up_slices();
  }
  part_ended();
}

void TransferState::part_ended() {
  if (parts_left_.fetch_sub(1) == 1) finish();
}

void TransferState::finish() {
  Status outcome;
  std::vector<AfterNotice> after;
  {
    MutexLock lock(mutex_);
    outcome = failure_;
    ended_ = true;
    after.swap(after_);
  }
  unpin_locals(plan_.locals_used.size());
  count_outcome(outcome);
  // Before the phase: what the caller sends after wait() comes behind these.
  for (AfterNotice& notice : after) {
    notice.peer->notify_later(outcome.reason(), std::move(notice.payload));
  }
  phase_.store(word(outcome.ok() ? TransferPhase::kSucceeded : TransferPhase::kFailed));
  if (sleepers_.load() != 0) futex_wake_all(phase_, FutexScope::kProcess);
  unref();
}

void TransferState::count_outcome(const Status& outcome) {
  auto& metrics = core().metrics();
  metrics.add(metrics::Gauge::kTransfersInFlight, -1);
  if (!outcome.ok()) {
    core().report("transfer with peer " + peer().name(), outcome);
    return;
  }
  metrics.add(metrics::Counter::kTransfersSucceeded);
  const bool read = setup_.direction == transport::Direction::kRead;
  metrics.add(read ? metrics::Counter::kReadBytes : metrics::Counter::kWrittenBytes,
              total_bytes_all_);
  const uint64_t shm_bytes = plan_.copy_bytes - plan_.cma_bytes;
  if (shm_bytes != 0) metrics.add(metrics::Counter::kShmBytes, shm_bytes);
  if (plan_.cma_bytes != 0) metrics.add(metrics::Counter::kCmaBytes, plan_.cma_bytes);
  if (plan_.posted_bytes != 0) {
    const bool tcp = peer().stream_kind() == transport::TransportKind::kTcp;
    metrics.add(tcp ? metrics::Counter::kTcpBytes : metrics::Counter::kUnixBytes,
                plan_.posted_bytes);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - setup_.started;
  metrics.observe(metrics::Histogram::kTransferSeconds, took.count());
  metrics.observe(metrics::Histogram::kTransferBytes, static_cast<double>(total_bytes_all_));
}

void TransferState::unpin_locals(size_t count) noexcept {
  for (size_t i = 0; i < count; ++i) {
    setup_.view->locals[plan_.locals_used[i]].record->gate.unpin();
  }
}

bool TransferState::ref_if_used() noexcept {
  uint32_t refs = refs_.load(std::memory_order_relaxed);
  while (refs != 0) {
    if (refs_.compare_exchange_weak(refs, refs + 1)) return true;
  }
  return false;
}

void TransferState::unref() noexcept {
  if (refs_.fetch_sub(1) != 1) return;
  active_.store(false);
  const Setup keep = std::exchange(setup_, {});  // Outlives the pool's lock: it may own the pool.
  pool_.give_back(*this);
}

TransferPool::TransferPool(uint32_t capacity) : capacity_(capacity) {
  free_.reserve(capacity);
  all_.reserve(capacity);
}

TransferPool::~TransferPool() = default;

Result<TransferState*> TransferPool::take() {
  MutexLock lock(mutex_);
  TransferState* state = nullptr;
  if (!free_.empty()) {
    state = free_.back();
    free_.pop_back();
  } else if (all_.size() < capacity_) {
    all_.push_back(std::make_unique<TransferState>(*this));
    state = all_.back().get();
  } else {
    return Status(Reason::kTooManyTransfers,
                  std::to_string(capacity_) +
                      " transfers are in flight (option max_transfers); wait for some");
  }
  state->refs_.store(1);
  return state;
}

void TransferPool::give_back(TransferState& state) noexcept {
  MutexLock lock(mutex_);
  free_.push_back(&state);
}

std::vector<TransferState*> TransferPool::active() {
  std::vector<TransferState*> active;
  for (TransferState* state : used()) {
    if (state->active_.load()) {
      active.push_back(state);
    } else {
      state->unref();
    }
  }
  return active;
}

std::vector<TransferState*> TransferPool::used() {
  MutexLock lock(mutex_);
  std::vector<TransferState*> held;
  for (const auto& state : all_) {
    if (state->ref_if_used()) held.push_back(state.get());
  }
  return held;
}

}  // namespace stagelink::engine
