#include "connector/moriio/io/memory_table.h"

#include <utility>

#include <fmt/format.h>

namespace stagelink::moriio {
namespace {

uint64_t address_of(const void* address) noexcept { return reinterpret_cast<uint64_t>(address); }

Status unknown_memory(const MemoryDesc& desc) {
  return {Reason::kNotRegistered,
          fmt::format("memory {} at {:#x}, {} bytes, is not registered with engine {}", desc.id,
                      desc.data, desc.size, desc.engine_key)};
}

}  // namespace

Result<std::shared_ptr<Region>> MemoryTable::allocate(Engine& engine, size_t bytes,
                                                      const AllocateOptions& options) {
  SL_ASSIGN(Region region, engine.allocate(bytes, options));
  auto shared = std::make_shared<Region>(std::move(region));
  MutexLock lock(mutex_);
  std::erase_if(allocated_, [](const auto& entry) { return entry.second.expired(); });
  allocated_.insert_or_assign(address_of(shared->bytes().data()), shared);
  return shared;
}

Result<MemoryDesc> MemoryTable::add(Engine& engine, void* address, size_t bytes, MemoryDesc form) {
  auto memory = std::make_shared<LocalMemory>();
  memory->region = bytes == 0 ? nullptr : allocated_around(address_of(address), bytes);
  memory->part = memory->region != nullptr;
  if (memory->region == nullptr) {
    SL_ASSIGN(Region region, engine.register_memory(address, bytes));
    memory->region = std::make_shared<Region>(std::move(region));
  }
  memory->desc = std::move(form);
  memory->desc.data = address_of(address);
  memory->desc.size = bytes;
  const RegionDesc region = memory->region->descriptor();
  memory->offset = memory->desc.data - region.address;
  MutexLock lock(mutex_);
  while (by_id_.contains(next_id_)) ++next_id_;  // After 2^32 registrations.
  memory->desc.id = next_id_++;
  memory->desc.set_region(region);
  by_id_.emplace(memory->desc.id, memory);
  return memory->desc;
}

std::shared_ptr<Region> MemoryTable::allocated_around(uint64_t address, size_t bytes) {
  MutexLock lock(mutex_);
  auto next = allocated_.upper_bound(address);
  if (next == allocated_.begin()) return nullptr;
  std::shared_ptr<Region> region = std::prev(next)->second.lock();
  if (region == nullptr) return nullptr;
  const uint64_t offset = address - std::prev(next)->first;
  const uint64_t limit = region->bytes().size();
  return offset <= limit && bytes <= limit - offset ? region : nullptr;
}

Result<std::shared_ptr<LocalMemory>> MemoryTable::find(const MemoryDesc& desc) const {
  MutexLock lock(mutex_);
  const auto found = by_id_.find(desc.id);
  if (found == by_id_.end() || found->second->desc != desc) return unknown_memory(desc);
  return found->second;
}

Status MemoryTable::remove(const MemoryDesc& desc) {
  SL_ASSIGN(const std::shared_ptr<LocalMemory> memory, find(desc));
  if (!memory->part) SL_TRY(memory->region->deregister());
  memory->removed.store(true);
  MutexLock lock(mutex_);
  by_id_.erase(desc.id);
  return {};
}

void MemoryTable::clear() {
  decltype(by_id_) memories;  // Go after the lock.
  MutexLock lock(mutex_);
  memories.swap(by_id_);
  allocated_.clear();
}

bool MemoryTable::empty() const {
  MutexLock lock(mutex_);
  return by_id_.empty() && allocated_.empty();
}

}  // namespace stagelink::moriio
