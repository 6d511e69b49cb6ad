#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/unique_fd.h"
#include "stagelink/engine_options.h"
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
// must live until run() has been called, or forget(), or the poller is gone. It may be posted again
// from the moment when run() is called.
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
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;
  ~Poller() = default;

  // Level-triggered unless the events say otherwise. Errors: limit (nofile or the watch limit).
  Status add(int fd, uint32_t epoll_events, PollHandler* handler);
  Status modify(int fd, uint32_t epoll_events, PollHandler* handler);
  // After it returns the handler is not called any more, not even for events of the current round.
  void remove(int fd, PollHandler* handler) noexcept;

  // Runs posted tasks, waits for events at most `timeout`, dispatches them, and runs the tasks that
  // were posted meanwhile.
  void run_once(Duration timeout);

  // A task that is posted already must not be posted again before it runs.
  void post(PollTask& task) noexcept;
  // Makes the current or the next run_once() return without waiting.
  void wake() noexcept;
  // Takes a task out of the queue. True if it was there.
  bool forget(PollTask& task) noexcept;
  // Gives the descriptors back: nothing can be added any more, and wake() does nothing. From the
  // loop's thread, or once there is none. Tasks stay in the queue and do not run.
  void close() noexcept;

 private:
  Poller(UniqueFd epoll, UniqueFd event) noexcept;
  void run_tasks();
  void take_posted() noexcept;
  bool was_removed(const PollHandler* handler) const noexcept;

  UniqueFd epoll_;
  UniqueFd event_;
  std::atomic<PollTask*> posted_{nullptr};  // Newest first.
  std::atomic<bool> asleep_{false};
  std::atomic<bool> closed_{false};
  std::atomic<uint32_t> wakers_{0};  // Threads inside wake().
  // Loop thread: oldest first, taken from posted_.
  PollTask* ready_ = nullptr;
  PollTask** ready_end_ = &ready_;
  std::vector<PollHandler*> removed_;  // Since the last wait.
};

}  // namespace stagelink::transport
