#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "stagelink/region.h"

namespace stagelink::pull {

// Memory that was registered for the connector, by address.
//
// Thread-safety: all methods may run at the same time.
class RegisteredMemory {
 public:
  void add(const std::shared_ptr<const Region>& region) SL_EXCLUDES(mutex_);
  // The region that holds all of `bytes`; null if there is none.
  std::shared_ptr<const Region> find(std::span<const std::byte> bytes) const SL_EXCLUDES(mutex_);

 private:
  struct Entry {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    std::weak_ptr<const Region> region;
  };
  mutable Mutex mutex_;
  std::vector<Entry> entries_ SL_GUARDED_BY(mutex_);  // By their beginning.
};

}  // namespace stagelink::pull
