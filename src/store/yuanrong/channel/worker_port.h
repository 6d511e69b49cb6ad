#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>

#include "base/deadline.h"
#include "base/mutex.h"
#include "stagelink/store_options.h"
#include "store/yuanrong/channel/link.h"
#include "store/yuanrong/channel/worker_options.h"

namespace stagelink::store::yuanrong {

// What went wrong, each with a counter of its own beside the outcomes that ObjectStore counts.
enum class Trouble : uint8_t {
  kBrokerLost,
  kBrokerStarted,
  kWorkerDown,   // Operations that failed because of it.
  kPartition,    // Misses behind a cut.
  kOutOfMemory,  // Puts without space.
  kEvicted,      // Objects of which a piece was missing.
  kCorrupt,      // Values that are not what was put.
  kViewsLost,    // Views whose broker has gone.
};
inline constexpr size_t kTroubles = 8;

// The way to the worker: one link at a time, made anew when its broker has died, and not more often
// than makes sense.
//
// Thread-safety: all methods may run at the same time.
class WorkerPort {
 public:
  // Connects. Errors: those of Link::open, connect_to_broker and read_worker_options.
  static Result<std::shared_ptr<WorkerPort>> open(const YuanrongOptions& options);

  // Over the link of now. A failure of the broker or the worker is logged and counted here; what
  // the datasystem answers is the caller's to judge.
  Result<LinkAnswer> call(const LinkCall& call, const Deadline& deadline);
  // Ok if a call would reach the worker just now; starts the broker if need be.
  Status ready(Op op, const Deadline& deadline);
  // Over the link that holds the memory.
  Result<LinkAnswer> call_over(Link& link, const LinkCall& call, const Deadline& deadline);

  // The Status of a call that was answered with a code: logged and counted. With a worker of the
  // ring cut off it is `partition`, whatever the code says.
  Status failure(Op op, const LinkAnswer& answer);
  // Of a key that was not found: Ok, or unreachable (partition).
  Status judge_miss();
  void count(Trouble trouble, uint64_t by = 1) noexcept;

  // Sleeps; ends early when the port closes.
  void pause(Duration duration);
  Status health();
  void close();
  bool closed() const;
  Deadline request_deadline() const noexcept { return Deadline::in(options_.request_timeout); }
  const YuanrongOptions& options() const noexcept { return options_; }
  std::string metrics_text(std::string_view labels);

 private:
  WorkerPort(YuanrongOptions options, WorkerOptions worker);
  Result<std::shared_ptr<Link>> link(const Deadline& deadline);
  Result<std::shared_ptr<Link>> connect(const Deadline& deadline);
  Status may_start_again() SL_REQUIRES(mutex_);
  Status note(Op op, Status status);

  const uint64_t fork_token_;
  const YuanrongOptions options_;
  const WorkerOptions worker_;
  std::array<std::atomic<uint64_t>, kTroubles> troubles_{};

  mutable Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<Link> link_ SL_GUARDED_BY(mutex_);
  std::deque<Deadline::Clock::time_point> starts_ SL_GUARDED_BY(mutex_);
  bool connecting_ SL_GUARDED_BY(mutex_) = false;
  bool closed_ SL_GUARDED_BY(mutex_) = false;
};

}  // namespace stagelink::store::yuanrong
