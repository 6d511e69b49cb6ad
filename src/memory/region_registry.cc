#include "memory/region_registry.h"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

namespace stagelink::memory {
namespace {

constexpr uint16_t kTableMajor = 1;
constexpr uint16_t kTableMinor = 1;

uint64_t address_of(const std::byte* at) noexcept { return reinterpret_cast<uintptr_t>(at); }

uint32_t flags_of(const RegionDesc& desc) noexcept {
  uint32_t flags = 0;
  if (desc.shareable) flags |= wire::kFlagShareable;
  if (desc.access == Access::kReadWrite) flags |= wire::kFlagPeersMayWrite;
  return flags;
}

}  // namespace

Result<std::unique_ptr<RegionRegistry>> RegionRegistry::create(InstanceId instance,
                                                               uint32_t capacity) {
  if (capacity == 0 || capacity > kMaxCapacity) {
    return Status(
        Reason::kInvalidArgument,
        fmt::format("a region table of {} rows; 1 to {} are possible", capacity, kMaxCapacity));
  }
  SL_ASSIGN(SharedPages table, SharedPages::create("stagelink-table", wire::table_bytes(capacity),
                                                   SharedPages::Peers::kMayRead));
  return std::unique_ptr<RegionRegistry>(new RegionRegistry(instance, capacity, std::move(table)));
}

RegionRegistry::RegionRegistry(InstanceId instance, uint32_t capacity, SharedPages table)
    : instance_(instance), capacity_(capacity), table_(std::move(table)), nonces_(random_u64()) {
  rows_.reserve(capacity);
  free_rows_.reserve(capacity);
  // No peer has the fd yet, so plain stores will do. Entries are zero, which reads as "not live".
  auto* const header = new (table_.bytes().data()) wire::TableHeader{};
  header->magic = wire::kTableMagic;
  header->version_major = kTableMajor;
  header->version_minor = kTableMinor;
  header->capacity = capacity;
  header->instance_high = instance.high;
  header->instance_low = instance.low;
  header->pid = static_cast<uint32_t>(::getpid());
  header->entry_bytes = sizeof(wire::TableEntry);
  header->epoch.store(1);  // 0 in an access lane means "nobody inside".
}

void RegionRegistry::offer_identity() noexcept {
  header()->identity_address = address_of(table_.bytes().data());
}

wire::TableEntry& RegionRegistry::entry(uint32_t index) const noexcept {
  return table_.at<wire::TableEntry>(wire::kTableEntriesOffset)[index];
}

Result<std::shared_ptr<RegionRecord>> RegionRegistry::add(void* address, size_t bytes,
                                                          Access access) {
  if (address == nullptr) return Status(Reason::kInvalidArgument, "registering a null address");
  if (bytes == 0) return Status(Reason::kInvalidArgument, "registering 0 bytes");
  auto* const data = static_cast<std::byte*>(address);
  if (bytes > std::numeric_limits<uint64_t>::max() - address_of(data)) {
    return Status(Reason::kOverflow, fmt::format("{:#x} + {} bytes passes the end of memory",
                                                 address_of(data), bytes));
  }
  auto record = std::make_shared<RegionRecord>();
  record->bytes = std::span(data, bytes);
  record->desc.access = access;
  return add_record(std::move(record));
}

Result<std::shared_ptr<RegionRecord>> RegionRegistry::add(Segment segment, Access access) {
  auto record = std::make_shared<RegionRecord>();
  record->bytes = segment.bytes();
  record->desc.access = access;
  record->desc.nonce = segment.nonce();
  record->desc.shareable = true;
  record->segment.emplace(std::move(segment));
  return add_record(std::move(record));
}

Result<std::shared_ptr<RegionRecord>> RegionRegistry::add_record(
    std::shared_ptr<RegionRecord> record) {
  RegionDesc& desc = record->desc;
  desc.instance = instance_;
  desc.address = address_of(record->bytes.data());
  desc.bytes = record->bytes.size();
  MutexLock lock(mutex_);
  SL_ASSIGN(desc.index, take_row());
  Row& row = rows_[desc.index];
  desc.generation = row.generation;
  if (!desc.shareable) desc.nonce = nonces_.next();
  row.record = record;
  publish(desc);
  index_stale_ = true;
  registered_bytes_.fetch_add(desc.bytes);
  size_.fetch_add(1);
  return record;
}

Result<uint32_t> RegionRegistry::take_row() {
  if (!free_rows_.empty()) {
    const uint32_t index = free_rows_.back();
    free_rows_.pop_back();
    return index;
  }
  if (rows_.size() == capacity_) {
    return Status(
        Reason::kTooManyRegions,
        fmt::format("all {} rows of the region table are taken (max_regions)", capacity_));
  }
  rows_.emplace_back();
  return static_cast<uint32_t>(rows_.size() - 1);
}

void RegionRegistry::publish(const RegionDesc& desc) noexcept {
  wire::TableEntry& to = entry(desc.index);
  // Release, partner: the reader's acquire loads of these fields (invariant 2). The state they
  // follow was stored by retire_row(), earlier in this process's order of the mutex.
  to.address.store(desc.address, std::memory_order_release);
  to.bytes.store(desc.bytes, std::memory_order_release);
  to.nonce.store(desc.nonce, std::memory_order_release);
  to.flags.store(flags_of(desc), std::memory_order_release);
  // Release, partner: the reader's acquire load of state: who sees the row live sees its fields.
  to.state.store(desc.generation << 1 | 1, std::memory_order_release);
  std::atomic<uint32_t>& used = header()->rows_used;
  // Release, partner: the acquire load by readers that search the table by address. Relaxed load:
  // only this registry writes it, under its mutex.
  if (used.load(std::memory_order_relaxed) <= desc.index) {
    used.store(desc.index + 1, std::memory_order_release);
  }
}

bool RegionRegistry::holds(const RegionRecord& record) const {
  const uint32_t index = record.desc.index;
  return index < rows_.size() && rows_[index].record.get() == &record;
}

uint64_t RegionRegistry::retire(RegionRecord& record) {
  MutexLock lock(mutex_);
  return holds(record) ? retire_row(record.desc.index) : 0;
}

uint64_t RegionRegistry::retire_row(uint32_t index) {
  Row& row = rows_[index];
  if (row.retired_epoch != 0) return row.retired_epoch;
  ++row.generation;
  // seq_cst, partner: a reader stores its lane, then loads this state (both seq_cst). Either it
  // sees the generation pass, or whoever waits for the lanes after this sees it inside.
  entry(index).state.store(row.generation << 1);
  row.record->gate.close();
  row.retired_epoch = header()->epoch.fetch_add(1) + 1;
  index_stale_ = true;
  return row.retired_epoch;
}

void RegionRegistry::forget(RegionRecord& record) {
  std::shared_ptr<RegionRecord> last;  // Unmapping takes long: not under the mutex.
  MutexLock lock(mutex_);
  if (!holds(record)) return;
  const uint32_t index = record.desc.index;
  retire_row(index);
  Row& row = rows_[index];
  last = std::move(row.record);
  row.record = nullptr;
  row.retired_epoch = 0;
  free_rows_.push_back(index);
  registered_bytes_.fetch_sub(last->desc.bytes);
  size_.fetch_sub(1);
}

Result<std::shared_ptr<RegionRecord>> RegionRegistry::find(uint32_t index,
                                                           uint64_t generation) const {
  MutexLock lock(mutex_);
  if (index >= rows_.size()) {
    return Status(Reason::kNotRegistered,
                  fmt::format("region {}: the table has {} rows in use", index, rows_.size()));
  }
  const Row& row = rows_[index];
  const bool live = row.record != nullptr && row.retired_epoch == 0;
  if (live && row.generation == generation) return row.record;
  return Status(Reason::kSuperseded,
                fmt::format("region {} generation {} is gone; the row is at generation {}{}", index,
                            generation, row.generation, live ? "" : ", not live"));
}

Result<std::shared_ptr<RegionRecord>> RegionRegistry::find_containing(uint64_t address,
                                                                      uint64_t bytes) const {
  if (bytes > std::numeric_limits<uint64_t>::max() - address) {
    return Status(Reason::kOverflow,
                  fmt::format("{:#x} + {} bytes passes the end of memory", address, bytes));
  }
  MutexLock lock(mutex_);
  if (index_stale_) rebuild_index();
  const auto after =
      std::upper_bound(index_.begin(), index_.end(), address,
                       [](uint64_t value, const IndexEntry& entry) { return value < entry.begin; });
  if (after == index_.begin() || (after - 1)->max_end < address + bytes) {
    return Status(Reason::kNotRegistered,
                  fmt::format("no single region holds {:#x} + {} bytes", address, bytes));
  }
  return rows_[(after - 1)->row].record;
}

void RegionRegistry::rebuild_index() const {
  index_.clear();
  index_.reserve(size_.load());
  for (uint32_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    if (row.record == nullptr || row.retired_epoch != 0) continue;
    const RegionDesc& desc = row.record->desc;
    index_.push_back({desc.address, desc.address + desc.bytes, i});
  }
  std::sort(index_.begin(), index_.end(),
            [](const IndexEntry& a, const IndexEntry& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < index_.size(); ++i) {
    if (index_[i - 1].max_end <= index_[i].max_end) continue;
    index_[i].max_end = index_[i - 1].max_end;
    index_[i].row = index_[i - 1].row;
  }
  index_stale_ = false;
}

std::vector<std::shared_ptr<RegionRecord>> RegionRegistry::live() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<RegionRecord>> records;
  records.reserve(size_.load());
  for (const Row& row : rows_) {
    if (row.record != nullptr && row.retired_epoch == 0) records.push_back(row.record);
  }
  return records;
}

}  // namespace stagelink::memory
