#include "store/yuanrong/large_objects.h"

namespace stagelink::store::yuanrong {

std::optional<LargeObjects::Chunks> LargeObjects::replace(const std::string& key,
                                                          std::optional<Chunks> now) {
  const MutexLock lock(mutex_);
  std::optional<Chunks> before;
  const auto at = chunks_.find(key);
  if (at != chunks_.end()) {
    before = at->second;
    if (!now) chunks_.erase(at);
  }
  if (now) {
    if (at == chunks_.end() && chunks_.size() >= kMostKeys) chunks_.erase(chunks_.begin());
    chunks_[key] = *now;
  }
  return before;
}

}  // namespace stagelink::store::yuanrong
