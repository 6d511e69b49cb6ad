#include "store/shm/arena_map.h"

#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace stagelink::store::shm {
namespace {

template <typename T>
T* part(std::span<std::byte> mapping, uint64_t at) noexcept {
  return reinterpret_cast<T*>(mapping.data() + at);
}

constexpr uint64_t long_key_offset(uint64_t size) noexcept { return (size + 7) / 8 * 8; }

}  // namespace

ArenaMap::ArenaMap(std::span<std::byte> mapping, const Geometry& geometry) noexcept
    : geometry_(geometry),
      header_(part<Header>(mapping, 0)),
      slots_(part<Slot>(mapping, geometry.slots_at)),
      index_(part<std::atomic<uint64_t>>(mapping, geometry.index_at)),
      heap_(mapping.data() + geometry.heap_at) {}

bool ArenaMap::fits(const Slot& slot) const noexcept {
  const uint64_t size = slot.size.get();
  const uint64_t offset = slot.offset.get();
  const uint32_t key_bytes = slot.key_bytes.get();
  if (key_bytes > 0 && key_bytes <= kMaxKeyBytes && size <= geometry_.capacity &&
      offset <= geometry_.capacity && offset % kUnit == 0 &&
      shm::span_of(size, key_bytes) <= geometry_.capacity - offset) {
    return true;
  }
  damaged();
  return false;
}

bool ArenaMap::key_is(const Slot& slot, std::string_view key) const noexcept {
  if (slot.key_bytes.get() != key.size() || !fits(slot)) return false;
  if (key.size() <= kInlineKeyBytes) {
    return std::memcmp(slot.key.data(), key.data(), key.size()) == 0;
  }
  const auto stored =
      heap(slot.offset.get() + long_key_offset(slot.size.get()), slot.key_bytes.get());
  return stored.size() == key.size() && std::memcmp(stored.data(), key.data(), key.size()) == 0;
}

std::string ArenaMap::key_of(const Slot& slot) const {
  const uint32_t bytes = slot.key_bytes.get();
  if (!fits(slot)) return {};
  if (bytes <= kInlineKeyBytes) return {reinterpret_cast<const char*>(slot.key.data()), bytes};
  const auto stored = heap(slot.offset.get() + long_key_offset(slot.size.get()), bytes);
  return {reinterpret_cast<const char*>(stored.data()), stored.size()};
}

void ArenaMap::set_key(Slot& slot, std::string_view key) const noexcept {
  slot.key_bytes.set(static_cast<uint32_t>(key.size()));
  if (key.size() <= kInlineKeyBytes) {
    std::memcpy(static_cast<void*>(slot.key.data()), key.data(), key.size());
    return;
  }
  const auto to = heap(slot.offset.get() + long_key_offset(slot.size.get()), key.size());
  if (to.size() == key.size()) std::memcpy(to.data(), key.data(), key.size());
}

uint64_t ArenaMap::hash_of(std::string_view key) const noexcept {
  return XXH3_64bits_withSeed(key.data(), key.size(), header_->hash_seed.get());
}

}  // namespace stagelink::store::shm
