#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/endpoint.h"
#include "base/mutex.h"
#include "cli/bench/target/control_channel.h"
#include "connector/zmq/listener.h"

namespace stagelink::cli::bench {

// The notify port of a decode rank: when each write_done came, and how long after the clock that
// its transfer id ends in.
//
// Thread-safety: all methods may run at the same time.
class NoticeLog final : private zmq::MessageHandler {
 public:
  // Errors: not_found (no ZeroMQ), those of Router::bind.
  static Result<std::unique_ptr<NoticeLog>> start();
  ~NoticeLog() = default;
  NoticeLog(const NoticeLog&) = delete;
  NoticeLog& operator=(const NoticeLog&) = delete;

  const Endpoint& endpoint() const noexcept { return listener_->endpoint(); }
  // The next `count` of them. values: the last one's clock, p50, p99; in nanoseconds. Errors:
  // timed_out.
  Result<Message> await(size_t count) SL_EXCLUDES(mutex_);

 private:
  NoticeLog() = default;
  std::vector<zmq::Frames> on_message(zmq::Frames frames) override SL_EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar arrived_;
  double last_us_ SL_GUARDED_BY(mutex_) = 0;
  std::vector<double> delays_us_ SL_GUARDED_BY(mutex_);
  std::unique_ptr<zmq::Listener> listener_;  // Ends first: it calls on_message().
};

// An id that tells the log when its transfer began.
std::string clocked_id(uint64_t number, double begun_us);

}  // namespace stagelink::cli::bench
