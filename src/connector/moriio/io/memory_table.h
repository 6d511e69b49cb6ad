#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/mutex.h"
#include "connector/moriio/io/memory_desc.h"
#include "stagelink/engine.h"

namespace stagelink::moriio {

// Memory of this engine as registered once: a region of its own, or a part of one that the engine
// has allocated.
struct LocalMemory {
  MemoryDesc desc;
  std::shared_ptr<Region> region;
  uint64_t offset = 0;  // Of desc.data in the region.
  bool part = false;    // Of a region that lives on without this registration.
  std::atomic<bool> removed{false};
};

// Local memory by the id of its registration. Registrations may overlap; each has an id of its own.
//
// Thread-safety: all methods may run at the same time.
class MemoryTable {
 public:
  // Kept for later registrations inside it as long as somebody holds it.
  Result<std::shared_ptr<Region>> allocate(Engine& engine, size_t bytes,
                                           const AllocateOptions& options) SL_EXCLUDES(mutex_);
  // `form` has the key of the engine, the device and the location. Errors: those of
  // Engine::register_memory.
  Result<MemoryDesc> add(Engine& engine, void* address, size_t bytes, MemoryDesc form)
      SL_EXCLUDES(mutex_);
  // Errors: not_registered.
  Result<std::shared_ptr<LocalMemory>> find(const MemoryDesc& desc) const SL_EXCLUDES(mutex_);
  // Errors: not_registered; busy (reader_inside): nothing has changed, call again.
  Status remove(const MemoryDesc& desc) SL_EXCLUDES(mutex_);
  void clear() SL_EXCLUDES(mutex_);
  bool empty() const SL_EXCLUDES(mutex_);

 private:
  std::shared_ptr<Region> allocated_around(uint64_t address, size_t bytes) SL_EXCLUDES(mutex_);

  mutable Mutex mutex_;
  uint32_t next_id_ SL_GUARDED_BY(mutex_) = 0;
  std::unordered_map<uint32_t, std::shared_ptr<LocalMemory>> by_id_ SL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::weak_ptr<Region>> allocated_ SL_GUARDED_BY(mutex_);  // By address.
};

}  // namespace stagelink::moriio
