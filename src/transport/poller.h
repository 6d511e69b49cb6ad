#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "stagelink/result.h"

namespace stagelink::transport {

// Told by the loop thread that its fd is ready.
class PollHandler {
 public:
  virtual void on_ready(uint32_t epoll_events) = 0;

 protected:
  ~PollHandler() = default;
};

// Work handed to the loop thread, once, by any thread. Linked into the queue without allocation; it
// must live until run() has been called (or the poller is gone).
class PollTask {
 public:
  virtual void run() = 0;

 protected:
  ~PollTask() = default;

 private:
  friend class Poller;
  PollTask* next_ = nullptr;
};

// One epoll loop, run by one thread (the owner). No thread of its own.
//
// Thread-safety: post() and wake() from any thread; everything else from the loop thread only.
class Poller {
 public:
  static Result<std::unique_ptr<Poller>> create();

  // Errors: limit (nofile or the watch limit).
  Status add(int fd, uint32_t epoll_events, PollHandler* handler);
  Status modify(int fd, uint32_t epoll_events, PollHandler* handler);
  // After it returns the handler is not called any more, not even for events of the current round.
  void remove(int fd, PollHandler* handler) noexcept;

  // Runs posted tasks, then waits for events at most `timeout` and dispatches them.
  void run_once(Duration timeout);

  void post(PollTask& task) noexcept;
  void wake() noexcept;

 private:
  Poller(UniqueFd epoll, UniqueFd event) noexcept;
  void run_tasks();

  UniqueFd epoll_;
  UniqueFd event_;
  std::atomic<PollTask*> tasks_{nullptr};      // Newest first.
  std::vector<PollHandler*> removed_;          // During a dispatch round.
};

}  // namespace stagelink::transport
