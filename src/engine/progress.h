#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/mutex.h"
#include "stagelink/result.h"
#include "transport/poller.h"

namespace stagelink::engine {

// The one thread of an engine that owns its sockets and its timer.
//
// Thread-safety: run() from any thread; start() and stop() from one; poller() on the loop thread.
class ProgressLoop {
 public:
  // Called on the loop thread; returns how long it may sleep until the next call.
  using Tick = std::function<Duration()>;

  static Result<std::unique_ptr<ProgressLoop>> create();
  ~ProgressLoop();
  ProgressLoop(const ProgressLoop&) = delete;
  ProgressLoop& operator=(const ProgressLoop&) = delete;

  Status start(Tick tick);
  // Ends the thread, if it was started, then runs on this thread what was handed over meanwhile,
  // and gives the poller's descriptors back.
  void stop();

  // Hands `work` to the loop thread, in order. Slow paths only: it allocates. After stop() there is
  // nothing left to take turns with, and `work` runs on the caller's thread, one work at a time.
  void run(std::function<void()> work) SL_EXCLUDES(mutex_);
  // The next tick comes soon instead of when it was due.
  void hurry() noexcept;
  transport::Poller& poller() noexcept { return *poller_; }

 private:
  explicit ProgressLoop(std::unique_ptr<transport::Poller> poller) noexcept;
  void loop();

  std::unique_ptr<transport::Poller> poller_;
  Tick tick_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
  Mutex mutex_;
  bool ended_ SL_GUARDED_BY(mutex_) = false;
  std::recursive_mutex late_mutex_;  // Held by late work, which may hand over more.
};

}  // namespace stagelink::engine
