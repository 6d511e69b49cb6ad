#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

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
  // Runs what was handed over, then ends the thread. Later run() calls do nothing.
  void stop();

  // Hands `work` to the loop thread, in order. Slow paths only: it allocates.
  void run(std::function<void()> work);
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
};

}  // namespace stagelink::engine
