#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "base/deadline.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "stagelink/result.h"

namespace stagelink::engine {

// Requests for the memory of a peer's region that wait for an answer.
//
// Thread-safety: all methods may run at the same time.
class RegionFetches {
 public:
  // Opens a request and returns its id.
  uint64_t open() SL_EXCLUDES(mutex_);
  // Waits for the answer and closes the request.
  Result<UniqueFd> wait(uint64_t id, const Deadline& deadline) SL_EXCLUDES(mutex_);
  // Answers a request; one that is not open any more is ignored (its fd is closed).
  void answer(uint64_t id, Result<UniqueFd> fd) SL_EXCLUDES(mutex_);
  // Answers all open requests and all later ones.
  void fail_all(const Status& why) SL_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  CondVar answered_;
  uint64_t next_id_ SL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, std::unique_ptr<Result<UniqueFd>>> open_ SL_GUARDED_BY(mutex_);
  Status failed_ SL_GUARDED_BY(mutex_);
};

}  // namespace stagelink::engine
