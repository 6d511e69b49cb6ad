#include "memory/free_bitmap.h"

#include <bit>
#include <cstddef>

namespace stagelink::memory {
namespace {

std::vector<uint64_t> ones(size_t count) {
  std::vector<uint64_t> words((count + 63) / 64, ~uint64_t{0});
  if (count % 64 != 0) words.back() = (uint64_t{1} << (count % 64)) - 1;
  return words;
}

}  // namespace

FreeBitmap::FreeBitmap(uint32_t count) {
  size_t size = count;
  do {
    levels_.push_back(ones(size));
    size = levels_.back().size();
  } while (size > 1);
}

void FreeBitmap::insert(uint32_t value) noexcept {
  size_t at = value;
  for (std::vector<uint64_t>& level : levels_) {
    level[at / 64] |= uint64_t{1} << (at % 64);
    at /= 64;
  }
}

void FreeBitmap::erase(uint32_t value) noexcept {
  size_t at = value;
  for (std::vector<uint64_t>& level : levels_) {
    level[at / 64] &= ~(uint64_t{1} << (at % 64));
    if (level[at / 64] != 0) return;  // The word still has members: nothing changes above.
    at /= 64;
  }
}

uint32_t FreeBitmap::lowest() const noexcept {
  size_t at = 0;
  for (size_t i = levels_.size(); i-- > 0;) {
    at = at * 64 + static_cast<size_t>(std::countr_zero(levels_[i][at]));
  }
  return static_cast<uint32_t>(at);
}

}  // namespace stagelink::memory
