#pragma once

#include <cstdint>
#include <vector>

namespace stagelink::memory {

// A set of small integers that finds its lowest member in a few steps: a bit for each, and above
// each word of 64 one bit that says whether the word has any.
//
// Thread-safety: none; the owner's mutex.
class FreeBitmap {
 public:
  explicit FreeBitmap(uint32_t count);  // All of [0, count) are members.

  bool contains(uint32_t value) const noexcept {
    return (levels_[0][value / 64] >> (value % 64) & 1) != 0;
  }
  void insert(uint32_t value) noexcept;
  void erase(uint32_t value) noexcept;
  // There must be one.
  uint32_t lowest() const noexcept;

 private:
  std::vector<std::vector<uint64_t>> levels_;  // levels_[0] has the members.
};

}  // namespace stagelink::memory
