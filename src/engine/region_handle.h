#pragma once

#include <memory>

#include "base/mutex.h"
#include "memory/region_registry.h"
#include "stagelink/region.h"

namespace stagelink::engine {

class EngineCore;

// What a public Region owns: one registration.
//
// Thread-safety: all methods may run at the same time.
class RegionHandle {
 public:
  RegionHandle(std::shared_ptr<EngineCore> core,
               std::shared_ptr<memory::RegionRecord> record) noexcept;
  RegionHandle(const RegionHandle&) = delete;
  RegionHandle& operator=(const RegionHandle&) = delete;
  ~RegionHandle();

  EngineCore& core() const noexcept { return *core_; }
  // Null once deregistered.
  std::shared_ptr<memory::RegionRecord> record() const SL_EXCLUDES(mutex_);
  RegionDesc descriptor() const noexcept { return desc_; }
  Status deregister(const Deadline& deadline) SL_EXCLUDES(mutex_);

 private:
  const std::shared_ptr<EngineCore> core_;
  const RegionDesc desc_;
  mutable Mutex mutex_;
  std::shared_ptr<memory::RegionRecord> record_ SL_GUARDED_BY(mutex_);
};

}  // namespace stagelink::engine
