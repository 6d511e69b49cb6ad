#include "transport/stream/served_batch.h"

#include <algorithm>

#include <fmt/format.h>

namespace stagelink::transport {
namespace {

constexpr size_t kRecentRegions = 128;

bool holds(const memory::RegionRecord& record, uint64_t address, uint64_t bytes) noexcept {
  const uint64_t begin = record.desc.address;
  return address >= begin && address - begin <= record.desc.bytes &&
         bytes <= record.desc.bytes - (address - begin);
}

Status out_of_bounds(size_t number, const wire::WireRange& range, uint64_t region_bytes) {
  return Status(Reason::kOutOfBounds,
                fmt::format("range {}: offset {} + {} bytes lies outside a region of {} bytes",
                            number, range.offset, range.bytes, region_bytes));
}

}  // namespace

Status ServedBatch::begin(const wire::BatchHeader& batch, const memory::RegionRegistry& registry,
                          Direction direction) {
  release();
  batch_ = &batch;
  registry_ = &registry;
  direction_ = direction;
  count_ = wire::range_count(batch);
  checked_ = 0;
  walk_.begin(batch.grouped);
  for (const wire::RegionRef& ref : batch.regions) {
    auto record = registry.find(ref.index, ref.generation);
    const Status status = record.ok() ? pin(*std::move(record)) : record.status();
    if (status.ok()) continue;
    release();
    return status;
  }
  return {};
}

Result<bool> ServedBatch::go_on(size_t max_ranges) {
  const size_t end = checked_ + std::min(max_ranges, count_ - checked_);
  for (; checked_ < end; ++checked_) {
    const wire::WireRange range = next_range();
    Status status = batch_->by_address ? add_by_address(range) : add_by_region(range);
    if (status.ok()) continue;
    release();
    return status;
  }
  if (checked_ < count_) return false;
  batch_ = nullptr;
  return true;
}

wire::WireRange ServedBatch::next_range() noexcept {
  return batch_->grouped.groups.empty() ? batch_->ranges[checked_] : walk_.next();
}

Status ServedBatch::add_by_region(const wire::WireRange& range) {
  const memory::RegionRecord& record = *regions_[range.region];
  const uint64_t size = record.bytes.size();
  if (range.offset > size || range.bytes > size - range.offset) {
    return out_of_bounds(checked_, range, size);
  }
  pieces_.add(record.bytes.data() + range.offset, range.bytes);
  return {};
}

// Ranges mostly follow each other within a few regions, so those found last are tried first.
Status ServedBatch::add_by_address(const wire::WireRange& range) {
  const memory::RegionRecord* home = nullptr;
  const size_t recent = std::min(regions_.size(), kRecentRegions);
  for (size_t i = 1; i <= recent && home == nullptr; ++i) {
    const memory::RegionRecord& record = *regions_[regions_.size() - i];
    if (holds(record, range.offset, range.bytes)) home = &record;
  }
  if (home == nullptr) {
    SL_ASSIGN(auto record, registry_->find_containing(range.offset, range.bytes));
    SL_TRY(pin(std::move(record)));
    home = regions_.back().get();
  }
  pieces_.add(home->bytes.data() + (range.offset - home->desc.address), range.bytes);
  return {};
}

Status ServedBatch::pin(std::shared_ptr<memory::RegionRecord> record) {
  if (direction_ == Direction::kWrite && record->desc.access == Access::kReadOnly) {
    return Status(Reason::kReadOnly,
                  fmt::format("region {} is registered read-only for peers", record->desc.index));
  }
  if (!record->gate.try_pin()) {
    return Status(Reason::kSuperseded,
                  fmt::format("region {} is being deregistered", record->desc.index));
  }
  regions_.push_back(std::move(record));
  return {};
}

bool ServedBatch::retired() const noexcept {
  for (const auto& record : regions_) {
    if (record->gate.closed()) return true;
  }
  return false;
}

void ServedBatch::release() noexcept {
  batch_ = nullptr;
  pieces_.clear();
  for (const auto& record : regions_) record->gate.unpin();
  regions_.clear();
}

}  // namespace stagelink::transport
