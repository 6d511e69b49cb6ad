#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/mutex.h"

namespace stagelink::store::yuanrong {

// The manifests that this process has put last, so that a put that replaces one can remove its
// chunks: the datasystem does not know that they belong together. What is forgotten, or was put by
// another process, goes by its time to live, by eviction or with erase().
//
// Thread-safety: all methods may run at the same time.
class LargeObjects {
 public:
  struct Chunks {
    uint64_t generation = 0;
    uint32_t count = 0;
  };
  // What was there before. No chunks: the object is one piece now.
  std::optional<Chunks> replace(const std::string& key, std::optional<Chunks> now);

 private:
  static constexpr size_t kMostKeys = 16'384;

  Mutex mutex_;
  std::unordered_map<std::string, Chunks> chunks_ SL_GUARDED_BY(mutex_);
};

}  // namespace stagelink::store::yuanrong
