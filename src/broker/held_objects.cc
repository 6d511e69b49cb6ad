#include "broker/held_objects.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>

#include "memory/memfd.h"

namespace stagelink::broker {

using store::yuanrong::Place;

HeldObjects::Copy::~Copy() { memory::unmap(bytes); }

Result<std::unique_ptr<HeldObjects::Copy>> HeldObjects::make_copy(uint64_t bytes) {
  auto copy = std::make_unique<Copy>();
  SL_ASSIGN(copy->fd, memory::create_memfd("stagelink-yuanrong-copy"));
  const size_t size = memory::round_up(bytes, memory::page_bytes());
  SL_TRY(memory::size_memfd(copy->fd.get(), size));
  SL_TRY(memory::reserve_pages(copy->fd.get(), 0, size, -1));
  SL_TRY(memory::seal_memfd(copy->fd.get(), Access::kReadWrite));
  SL_ASSIGN(copy->bytes, memory::map_shared(copy->fd.get(), size, true));
  return copy;
}

Result<Place> HeldObjects::add(SdkMemory memory, Use use) {
  Place place;
  place.size = memory.size;
  place.found = 1;
  Held held;
  if (const auto found = mappings_.find(memory.data, memory.size)) {
    held.arena = found->id;
    place.offset = found->offset;
  } else {
    SL_ASSIGN(held.copy, make_copy(memory.size));
    held.arena = mappings_.take_id();
    if (use == Use::kRead) std::memcpy(held.copy->bytes.data(), memory.data, memory.size);
  }
  place.arena = held.arena;
  held.memory = std::make_shared<const SdkMemory>(std::move(memory));
  const MutexLock lock(mutex_);
  if (held_.size() >= kMostHeld) {
    return Status(Reason::kLimit, fmt::format("{} objects are held already", held_.size()));
  }
  if (held.copy != nullptr) ++copies_;
  place.handle = ++last_handle_;
  held_.emplace(place.handle, std::move(held));
  return place;
}

ArenaNotice HeldObjects::notice_for(const Place& place) {
  ArenaNotice notice;
  const MutexLock lock(mutex_);
  const auto at = held_.find(place.handle);
  if (at == held_.end()) return notice;
  const Held& held = at->second;
  if (held.copy != nullptr) {
    notice = {held.arena, held.copy->bytes.size(),
              UniqueFd(::fcntl(held.copy->fd.get(), F_DUPFD_CLOEXEC, 64))};
    return notice;
  }
  if (std::find(told_.begin(), told_.end(), held.arena) != told_.end()) return notice;
  const auto found = mappings_.find(held.memory->data, held.memory->size);
  if (!found || found->id != held.arena) return notice;
  notice = {held.arena, found->bytes, mappings_.descriptor(held.arena)};
  told_.push_back(held.arena);
  return notice;
}

std::shared_ptr<const SdkMemory> HeldObjects::take_filled(uint64_t handle) {
  Held held;
  {
    const MutexLock lock(mutex_);
    const auto at = held_.find(handle);
    if (at == held_.end()) return nullptr;
    held = std::move(at->second);
    held_.erase(at);
    if (held.copy != nullptr) gone_.push_back(held.arena);
  }
  if (held.copy != nullptr) {
    std::memcpy(held.memory->data, held.copy->bytes.data(), held.memory->size);
  }
  return held.memory;
}

void HeldObjects::release(std::span<const uint64_t> handles) {
  std::vector<Held> ended;  // Dropped without the lock: the library may take its time.
  ended.reserve(handles.size());
  const MutexLock lock(mutex_);
  for (const uint64_t handle : handles) {
    const auto at = held_.find(handle);
    if (at == held_.end()) continue;
    if (at->second.copy != nullptr) gone_.push_back(at->second.arena);
    ended.push_back(std::move(at->second));
    held_.erase(at);
  }
}

void HeldObjects::release_all() {
  std::unordered_map<uint64_t, Held> ended;
  const MutexLock lock(mutex_);
  ended.swap(held_);
}

std::vector<uint64_t> HeldObjects::gone() {
  const uint64_t changes = mappings_.changes();
  const MutexLock lock(mutex_);
  std::vector<uint64_t> out = std::exchange(gone_, {});
  if (changes == seen_changes_) return out;
  seen_changes_ = changes;
  std::erase_if(told_, [&](uint64_t id) {
    if (mappings_.alive(id)) return false;
    out.push_back(id);
    return true;
  });
  return out;
}

uint64_t HeldObjects::copies() const {
  const MutexLock lock(mutex_);
  return copies_;
}

size_t HeldObjects::size() const {
  const MutexLock lock(mutex_);
  return held_.size();
}

}  // namespace stagelink::broker
