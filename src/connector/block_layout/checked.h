#pragma once

#include <cstdint>

namespace stagelink::block_layout {

// Sums and products of sizes that a user or a peer has named. After the first overflow ok() stays
// false and every result is zero, so a formula is checked once at its end.
class Checked {
 public:
  uint64_t mul(uint64_t a, uint64_t b) noexcept {
    uint64_t out = 0;
    if (__builtin_mul_overflow(a, b, &out) || out > kMax) ok_ = false;
    return ok_ ? out : 0;
  }
  uint64_t add(uint64_t a, uint64_t b) noexcept {
    uint64_t out = 0;
    if (__builtin_add_overflow(a, b, &out) || out > kMax) ok_ = false;
    return ok_ ? out : 0;
  }
  bool ok() const noexcept { return ok_; }

 private:
  static constexpr uint64_t kMax = uint64_t{1} << 62;  // Two of them still add up.
  bool ok_ = true;
};

}  // namespace stagelink::block_layout
