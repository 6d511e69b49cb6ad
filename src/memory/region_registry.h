#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "memory/segment.h"
#include "stagelink/region.h"
#include "stagelink/result.h"
#include "wire/table_layout.h"

namespace stagelink::memory {

// Counts local uses of a region (a transfer, a serving connection), and closes.
//
// Thread-safety: all methods may run at the same time.
class PinGate {
 public:
  bool try_pin() noexcept;  // False once closed.
  void unpin() noexcept;
  void close() noexcept;    // No new pins.
  // True once closed and unpinned; false at the deadline.
  bool wait_unpinned(const Deadline& deadline) noexcept;
  uint32_t pins() const noexcept;

 private:
  std::atomic<uint32_t> word_{0};  // pins | kClosed; futex.
};

// One registered region. Immutable but for its gate.
struct RegionRecord {
  RegionDesc desc;
  std::span<std::byte> bytes;
  std::optional<Segment> segment;  // Set if allocated by the engine.
  PinGate gate;
};

// The regions of one engine, and the table in which peers see them. Rows are reused; generations
// never repeat. Registration is O(1), so that ten thousand views cost milliseconds.
//
// Thread-safety: all methods may run at the same time.
class RegionRegistry {
 public:
  static Result<std::unique_ptr<RegionRegistry>> create(InstanceId instance, uint32_t capacity);

  Result<std::shared_ptr<RegionRecord>> add(void* address, size_t bytes, Access access);
  Result<std::shared_ptr<RegionRecord>> add(Segment segment, Access access);

  // Step 1 of deregistration: passes the generation, closes the gate, advances the epoch. Returns
  // the epoch that accesses must have reached to be harmless. Idempotent.
  uint64_t retire(RegionRecord& record);
  // Step 2, after all accesses have ended: the row may be reused. Drops the registry's reference.
  void forget(const RegionRecord& record);

  // Errors: not_registered (no such row), superseded (another generation).
  Result<std::shared_ptr<RegionRecord>> find(uint32_t index, uint64_t generation) const;
  // A live region that holds all of [address, address + bytes). Errors: not_registered, overflow.
  Result<std::shared_ptr<RegionRecord>> find_containing(uint64_t address, uint64_t bytes) const;

  std::vector<std::shared_ptr<RegionRecord>> live() const;
  uint64_t registered_bytes() const noexcept;
  uint32_t size() const noexcept;
  int table_fd() const noexcept { return table_.fd(); }
  wire::TableHeader* header() const noexcept { return table_.at<wire::TableHeader>(); }

 private:
  struct Row {
    std::shared_ptr<RegionRecord> record;
    uint64_t generation = 0;
  };
  RegionRegistry(InstanceId instance, uint32_t capacity, SharedPages table);
  Result<std::shared_ptr<RegionRecord>> add_record(std::shared_ptr<RegionRecord> record,
                                                   uint64_t nonce);
  void rebuild_index() const SL_REQUIRES(mutex_);

  const InstanceId instance_;
  const uint32_t capacity_;
  SharedPages table_;
  mutable Mutex mutex_;
  std::vector<Row> rows_ SL_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_rows_ SL_GUARDED_BY(mutex_);
  // Live rows by address with the running maximum of their ends; rebuilt when a lookup needs it.
  struct IndexEntry {
    uint64_t begin;
    uint64_t end;
    uint64_t max_end;
    uint32_t row;
  };
  mutable std::vector<IndexEntry> index_ SL_GUARDED_BY(mutex_);
  mutable bool index_stale_ SL_GUARDED_BY(mutex_) = false;
  std::atomic<uint64_t> registered_bytes_{0};
  std::atomic<uint32_t> size_{0};
};

}  // namespace stagelink::memory
