#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "store/shm/layout.h"

namespace stagelink::store::shm {

// A mapped arena as its parts. Whatever the file says, nothing outside the mapping is reached: an
// index out of range gives a slot that stands for none, and is remembered as damage.
//
// Thread-safety: all methods may run at the same time; see layout.h for who may change what.
class ArenaMap {
 public:
  // The mapping has geometry.total_bytes and outlives this.
  ArenaMap(std::span<std::byte> mapping, const Geometry& geometry) noexcept;
  ArenaMap(const ArenaMap&) = delete;
  ArenaMap& operator=(const ArenaMap&) = delete;

  const Geometry& geometry() const noexcept { return geometry_; }
  Header& header() const noexcept { return *header_; }
  uint32_t max_objects() const noexcept { return geometry_.max_objects; }

  // Where the heap begins: a slot of no bytes that is never used, in front of all others.
  uint32_t heap_head() const noexcept { return geometry_.max_objects; }
  Slot& slot(uint32_t index) const noexcept {
    if (index < geometry_.max_objects) [[likely]]
      return slots_[index];
    if (index != heap_head()) damaged();
    return slots_[geometry_.max_objects];
  }
  Tag tag(uint32_t index) const noexcept {
    // Partner of every store of a tag, which are releases: what a state needs is seen with it.
    return {slot(index).tag.load(std::memory_order_acquire)};
  }
  std::atomic<uint64_t>& index_entry(uint64_t at) const noexcept {
    return index_[at & (geometry_.index_size - 1)];
  }

  // Empty, and damage, unless it lies within the heap.
  std::span<std::byte> heap(uint64_t offset, uint64_t bytes) const noexcept {
    if (offset <= geometry_.capacity && bytes <= geometry_.capacity - offset) [[likely]] {
      return {heap_ + offset, static_cast<size_t>(bytes)};
    }
    damaged();
    return {};
  }
  // Whether the slot's object lies within the heap; if not, that is damage.
  bool fits(const Slot& slot) const noexcept;
  bool key_is(const Slot& slot, std::string_view key) const noexcept;
  std::string key_of(const Slot& slot) const;
  void set_key(Slot& slot, std::string_view key) const noexcept;
  uint64_t span_of(const Slot& slot) const noexcept {
    return shm::span_of(slot.size.get(), slot.key_bytes.get());
  }
  bool is_viewed(const Slot& slot) const noexcept {
    for (const auto& word : slot.viewers) {
      if (word.load(std::memory_order_seq_cst) != 0) return true;
    }
    return false;
  }

  uint64_t hash_of(std::string_view key) const noexcept;

  // Something in the file cannot be right. Found out again and again until it is made anew.
  void damaged() const noexcept { damaged_.store(true, std::memory_order_relaxed); }
  bool take_damage() const noexcept { return damaged_.exchange(false, std::memory_order_relaxed); }
  bool is_damaged() const noexcept { return damaged_.load(std::memory_order_relaxed); }

 private:
  const Geometry geometry_;
  Header* const header_;
  Slot* const slots_;
  std::atomic<uint64_t>* const index_;
  std::byte* const heap_;
  mutable std::atomic<bool> damaged_{false};
};

}  // namespace stagelink::store::shm
