#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/random.h"
#include "memory/pin_gate.h"
#include "memory/segment.h"
#include "stagelink/region.h"
#include "stagelink/result.h"
#include "wire/table_layout.h"

namespace stagelink::memory {

// One registered region. Immutable but for its gate.
struct RegionRecord {
  RegionDesc desc;
  std::span<std::byte> bytes;
  std::optional<Segment> segment;  // Set if allocated by the engine.
  PinGate gate;
};

// The regions of one engine, and the table in which peers see them. Rows are reused; generations of
// a row never repeat. Registration is O(1), so that ten thousand views cost milliseconds.
//
// The life of a row: free -> add() -> live -> retire() -> retired -> forget() -> free.
//
// Invariants:
//  1. A row's state in the table is (generation << 1 | live). retire() moves it to the next
//     generation, not live; add() makes that generation live. So no two regions share one.
//  2. The fields of a row change only while it is not live, and each is stored with release after
//     the state that ended its last life: a reader that saw any newer field sees, when it looks at
//     the state again, that its generation has passed.
//  3. The epoch grows after the state has changed (both seq_cst): an access that names a later
//     epoch in its lane has seen, or will see, that the generation has passed.
//
// Thread-safety: all methods may run at the same time.
class RegionRegistry {
 public:
  // Errors: invalid_argument (capacity 0 or above kMaxCapacity); those of SharedPages::create.
  static Result<std::unique_ptr<RegionRegistry>> create(InstanceId instance, uint32_t capacity);

  // Errors: invalid_argument (null, 0 bytes, overflow), limit (too_many_regions).
  Result<std::shared_ptr<RegionRecord>> add(void* address, size_t bytes, Access access);
  Result<std::shared_ptr<RegionRecord>> add(Segment segment, Access access);

  // Step 1 of deregistration: passes the generation, closes the gate, advances the epoch. Returns
  // the epoch that accesses must have reached to be harmless. Idempotent: the same answer until
  // forget(), then 0, because nothing is left to wait for.
  uint64_t retire(RegionRecord& record);
  // Step 2, after all accesses have ended: the row may be reused. Drops the registry's reference.
  // Retires a record that still is live.
  void forget(RegionRecord& record);

  // Errors: not_registered (no such row), superseded (another generation, or retired).
  Result<std::shared_ptr<RegionRecord>> find(uint32_t index, uint64_t generation) const;
  // A live region that holds all of [address, address + bytes). Errors: not_registered, overflow.
  Result<std::shared_ptr<RegionRecord>> find_containing(uint64_t address, uint64_t bytes) const;

  // Those not retired, by row.
  std::vector<std::shared_ptr<RegionRecord>> live() const;
  // Both count a region until it is forgotten: until then its memory is not the caller's again.
  uint64_t registered_bytes() const noexcept { return registered_bytes_.load(); }
  uint32_t size() const noexcept { return size_.load(); }
  int table_fd() const noexcept { return table_.fd(); }
  // For the end of an engine: nobody else calls table_fd() any more.
  void close_table_fd() noexcept { table_.close_fd(); }
  wire::TableHeader* header() const noexcept { return table_.at<wire::TableHeader>(); }
  // Tells peers where they can read our identity, and with it that they may use process_vm_readv.
  // Before the first peer has the table.
  void offer_identity() noexcept;

  static constexpr uint32_t kMaxCapacity = 1 << 24;

 private:
  struct Row {
    std::shared_ptr<RegionRecord> record;
    uint64_t generation = 1;     // Of the region that is or comes next in this row.
    uint64_t retired_epoch = 0;  // Not 0: retired.
  };
  // Of the regions that begin at or before `begin`, the one that ends last. It holds a range that
  // begins at or after `begin` (and before the next entry) if any region does.
  struct IndexEntry {
    uint64_t begin;
    uint64_t max_end;
    uint32_t row;
  };

  RegionRegistry(InstanceId instance, uint32_t capacity, SharedPages table);
  Result<std::shared_ptr<RegionRecord>> add_record(std::shared_ptr<RegionRecord> record);
  Result<uint32_t> take_row() SL_REQUIRES(mutex_);
  void publish(const RegionDesc& desc) noexcept;
  uint64_t retire_row(uint32_t index) SL_REQUIRES(mutex_);
  bool holds(const RegionRecord& record) const SL_REQUIRES(mutex_);
  void rebuild_index() const SL_REQUIRES(mutex_);
  wire::TableEntry& entry(uint32_t index) const noexcept;

  const InstanceId instance_;
  const uint32_t capacity_;
  SharedPages table_;
  mutable Mutex mutex_;
  SplitMix64 nonces_ SL_GUARDED_BY(mutex_);  // Of registered memory; only has to differ.
  std::vector<Row> rows_ SL_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_rows_ SL_GUARDED_BY(mutex_);
  // Sorted by begin; rebuilt when a lookup finds it stale.
  mutable std::vector<IndexEntry> index_ SL_GUARDED_BY(mutex_);
  mutable bool index_stale_ SL_GUARDED_BY(mutex_) = false;
  std::atomic<uint64_t> registered_bytes_{0};
  std::atomic<uint32_t> size_{0};
};

}  // namespace stagelink::memory
