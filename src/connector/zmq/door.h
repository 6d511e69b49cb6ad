#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "connector/zmq/curve_keys.h"
#include "connector/zmq/library.h"

namespace stagelink::zmq {

// Who may connect to the listeners of one context with keys: those that show the caller's public
// key. It answers ZeroMQ's authentication requests (ZAP, RFC 27) on a thread of its own.
//
// Thread-safety: all methods may run at the same time.
class Door {
 public:
  // Before the first listener is bound. Errors: those of ZeroMQ; limit (nofile).
  static Result<std::unique_ptr<Door>> open(std::shared_ptr<const Library> library, void* context,
                                            std::shared_ptr<const CurveKeys> keys);
  ~Door();
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

  // Sees those who fail before they are asked for a key, too. For each listener, before it is
  // bound.
  Status watch(void* listener);

  uint64_t admitted() const noexcept { return admitted_.load(); }
  uint64_t refused() const noexcept { return refused_.load(); }

 private:
  Door(std::shared_ptr<const Library> library, void* context, std::shared_ptr<const CurveKeys> keys,
       void* socket, UniqueFd wake) noexcept;
  void run();
  bool answer_one();
  bool take_watched();
  bool read_event(void* events);
  void refuse(std::string_view address, std::string_view why);

  const std::shared_ptr<const Library> library_;
  void* const context_;
  const std::shared_ptr<const CurveKeys> keys_;
  void* const socket_;  // Of the thread.
  UniqueFd wake_;
  std::atomic<uint64_t> admitted_{0};
  std::atomic<uint64_t> refused_{0};

  Mutex mutex_;
  std::vector<void*> new_events_ SL_GUARDED_BY(mutex_);  // Sockets, on their way to the thread.
  bool closing_ SL_GUARDED_BY(mutex_) = false;
  uint64_t watched_ SL_GUARDED_BY(mutex_) = 0;
  std::vector<void*> events_;  // Of the thread.
  std::thread thread_;
};

}  // namespace stagelink::zmq
