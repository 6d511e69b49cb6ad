#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "stagelink/status.h"

namespace stagelink::engine {

class TransferState;

// The copy threads of an engine: they go on with batches that nobody waits for, and help those who
// wait on another processor. Started with the first batch that needs them.
//
// Thread-safety: all methods may run at the same time.
class CopyPool {
 public:
  explicit CopyPool(uint32_t threads) noexcept;
  ~CopyPool();
  CopyPool(const CopyPool&) = delete;
  CopyPool& operator=(const CopyPool&) = delete;

  // A fresh batch: taken if a copy thread can help. On a process with a single processor it cannot
  // help a caller who is about to wait, so the batch is left to the caller.
  void offer(TransferState& state) SL_EXCLUDES(mutex_);
  // A batch that must go on without its caller. False if there are no copy threads.
  bool enqueue(TransferState& state) SL_EXCLUDES(mutex_);
  bool helps() const noexcept { return threads_wanted_ != 0 && several_cpus_.load(); }

  // Looks at the processors this process may use; called by the engine's timer.
  void look_at_cpus() noexcept;
  void stop() SL_EXCLUDES(mutex_);

 private:
  void start_threads() SL_REQUIRES(mutex_);
  void loop() SL_EXCLUDES(mutex_);
  TransferState* next() SL_EXCLUDES(mutex_);
  void work(TransferState& state);

  const uint32_t threads_wanted_;
  std::atomic<bool> several_cpus_{true};
  Mutex mutex_;
  CondVar queued_;
  TransferState* first_ SL_GUARDED_BY(mutex_) = nullptr;
  TransferState* last_ SL_GUARDED_BY(mutex_) = nullptr;
  bool stopped_ SL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ SL_GUARDED_BY(mutex_);
};

}  // namespace stagelink::engine
