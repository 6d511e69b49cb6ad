#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "broker/sdk.h"

namespace stagelink::broker {

// The files behind the library's shared mappings. The library closes its descriptor as soon as it
// has mapped a segment of the worker; this keeps one, so that clients can map the same segment.
//
// Allocates nothing: it is called from within mmap().
//
// Thread-safety: all methods may run at the same time.
class Mappings final : public MappingListener {
 public:
  struct Found {
    uint64_t id = 0;      // Never given again.
    uint64_t bytes = 0;   // Of the file, from its start to the end of the mapping.
    uint64_t offset = 0;  // Of the address, in the file.
  };

  void mapped(void* address, size_t bytes, int fd, off_t offset) noexcept override;
  void unmapped(void* address, size_t bytes) noexcept override;

  // Nothing if [address, address + bytes) is not within one mapping.
  std::optional<Found> find(const void* address, uint64_t bytes) const noexcept;
  // A descriptor of the caller's own; empty if the mapping is gone.
  UniqueFd descriptor(uint64_t id) const noexcept;
  // Counts what went. Whoever has told others of a mapping looks which are gone.
  uint64_t changes() const noexcept;
  bool alive(uint64_t id) const noexcept;

  // For memory of the broker's own that is handed over in the same way.
  uint64_t take_id() noexcept;

 private:
  struct Entry {
    uint64_t id = 0;  // 0: free.
    uintptr_t begin = 0;
    uint64_t bytes = 0;
    uint64_t offset = 0;
    int fd = -1;
  };
  const Entry* entry(uint64_t id) const noexcept SL_REQUIRES(mutex_);

  // Of a worker there are some tens. Beyond, values are copied.
  static constexpr size_t kMost = 512;

  mutable Mutex mutex_;
  std::array<Entry, kMost> entries_ SL_GUARDED_BY(mutex_);
  uint64_t last_id_ SL_GUARDED_BY(mutex_) = 0;
  uint64_t changes_ SL_GUARDED_BY(mutex_) = 0;
};

}  // namespace stagelink::broker
