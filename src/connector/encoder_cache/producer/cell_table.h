#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "connector/encoder_cache/registry/entry.h"
#include "connector/pull/memory/piece.h"

namespace stagelink::encoder_cache {

// An embedding that a producer keeps.
struct Cell {
  EmbeddingInfo info;
  uint64_t generation = 0;
  pull::Piece piece;
};

// What a producer has, oldest first. Who looks renews nothing: an embedding's age counts from its
// last save.
//
// Thread-safety: all methods may run at the same time.
class CellTable {
 public:
  using Clock = std::chrono::steady_clock;

  // Whether it is there with just this shape; if it is, it is the youngest now.
  bool renew(std::string_view mm_hash, const EmbeddingInfo& info) SL_EXCLUDES(mutex_);
  void add(std::string_view mm_hash, Cell cell) SL_EXCLUDES(mutex_);
  std::optional<Cell> find(std::string_view mm_hash) const SL_EXCLUDES(mutex_);
  // The cell that was there. Its piece is to be dropped without locks.
  std::optional<Cell> remove(std::string_view mm_hash, uint64_t generation = 0) SL_EXCLUDES(mutex_);

  struct Victim {
    std::string mm_hash;
    uint64_t generation = 0;
    uint64_t nbytes = 0;
  };
  // The `count` oldest behind the first `skip`.
  std::vector<Victim> oldest(size_t count, size_t skip) const SL_EXCLUDES(mutex_);
  size_t size() const SL_EXCLUDES(mutex_);
  Clock::duration oldest_age() const SL_EXCLUDES(mutex_);

 private:
  struct Aged {
    std::string mm_hash;
    Clock::time_point saved;
  };
  struct Slot {
    Cell cell;
    std::list<Aged>::iterator age;
  };
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const noexcept {
      return std::hash<std::string_view>()(text);
    }
  };
  mutable Mutex mutex_;
  std::list<Aged> by_age_ SL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, Slot, TextHash, std::equal_to<>> cells_ SL_GUARDED_BY(mutex_);
};

}  // namespace stagelink::encoder_cache
