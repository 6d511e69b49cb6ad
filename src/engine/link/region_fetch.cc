#include "engine/link/region_fetch.h"

#include <utility>

namespace stagelink::engine {

uint64_t RegionFetches::open() {
  MutexLock lock(mutex_);
  const uint64_t id = next_id_++;
  open_.emplace(id, failed_.ok() ? nullptr : std::make_unique<Result<UniqueFd>>(failed_));
  return id;
}

Result<UniqueFd> RegionFetches::wait(uint64_t id, const Deadline& deadline) {
  MutexLock lock(mutex_);
  const auto at = open_.find(id);
  while (at->second == nullptr) {
    if (!answered_.wait_until(mutex_, deadline) && at->second == nullptr) {
      open_.erase(at);
      return Status(Reason::kTimedOut, "the peer did not hand over the region's memory in time");
    }
  }
  Result<UniqueFd> fd = std::move(*at->second);
  open_.erase(at);
  return fd;
}

void RegionFetches::answer(uint64_t id, Result<UniqueFd> fd) {
  MutexLock lock(mutex_);
  const auto at = open_.find(id);
  if (at == open_.end() || at->second != nullptr) return;
  at->second = std::make_unique<Result<UniqueFd>>(std::move(fd));
  answered_.notify_all();
}

void RegionFetches::fail_all(const Status& why) {
  MutexLock lock(mutex_);
  failed_ = why;
  for (auto& [id, slot] : open_) {
    if (slot == nullptr) slot = std::make_unique<Result<UniqueFd>>(why);
  }
  answered_.notify_all();
}

}  // namespace stagelink::engine
