#include "engine/batch/copy_pool.h"

#include <system_error>

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include "base/log.h"
#include "engine/batch/transfer_state.h"

namespace stagelink::engine {

CopyPool::CopyPool(uint32_t threads) noexcept : threads_wanted_(threads) { look_at_cpus(); }

CopyPool::~CopyPool() { stop(); }

void CopyPool::look_at_cpus() noexcept {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (::sched_getaffinity(0, sizeof cpus, &cpus) == 0) several_cpus_.store(CPU_COUNT(&cpus) > 1);
}

void CopyPool::offer(TransferState& state) {
  if (helps()) enqueue(state);
}

bool CopyPool::enqueue(TransferState& state) {
  if (threads_wanted_ == 0) return false;
  if (state.queued.exchange(true)) return true;
  {
    MutexLock lock(mutex_);
    if (!stopped_ && threads_.empty()) start_threads();
    if (stopped_ || threads_.empty()) {
      state.queued.store(false);
      return false;
    }
    state.ref();
    state.queue_next = nullptr;
    (last_ != nullptr ? last_->queue_next : first_) = &state;
    last_ = &state;
  }
  queued_.notify_one();
  return true;
}

void CopyPool::start_threads() {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (uint32_t i = 0; i < threads_wanted_; ++i) {
    try {
      threads_.emplace_back([this] { loop(); });
      pthread_setname_np(threads_.back().native_handle(), "sl-copy");
    } catch (const std::system_error& error) {
      log_failure("copy thread", Status(Reason::kLimit, error.what()));
      break;
    }
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void CopyPool::loop() {
  // A batch thread does not push aside the thread that has just submitted to it.
  const sched_param param{};
  (void)::pthread_setschedparam(::pthread_self(), SCHED_BATCH, &param);
  while (TransferState* state = next()) work(*state);
}

TransferState* CopyPool::next() {
  MutexLock lock(mutex_);
  while (first_ == nullptr && !stopped_) {
    (void)queued_.wait_until(mutex_, Deadline::in(std::chrono::minutes(1)));
  }
  if (first_ == nullptr) return nullptr;
  TransferState* state = first_;
  first_ = state->queue_next;
  if (first_ == nullptr) last_ = nullptr;
  return state;
}

void CopyPool::work(TransferState& state) {
  while (state.slices_left()) {
    // A waiter on this very processor is better off without us.
    if (state.attended_cpu() == ::sched_getcpu()) break;
    if (state.overdue()) {
      state.end_early(Status(Reason::kTimedOut, "the transfer did not end before its deadline"));
      break;
    }
    state.run_slice();
  }
  state.queued.store(false);
  // The waiter clears attended_cpu, then offers what is left; queued was still set, so it is up to
  // us. Both are sequentially consistent.
  if (state.slices_left() && state.attended_cpu() < 0) enqueue(state);
  state.unref();
}

void CopyPool::stop() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    threads.swap(threads_);
  }
  queued_.notify_all();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace stagelink::engine
