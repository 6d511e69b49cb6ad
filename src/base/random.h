#pragma once

#include <cstdint>

#include "stagelink/region.h"

namespace stagelink {

// From the kernel; for identities and nonces.
uint64_t random_u64() noexcept;
InstanceId random_instance_id() noexcept;

// SplitMix64: small, seedable, the same everywhere. For tests, faults and workloads.
class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) noexcept : state_(seed) {}
  uint64_t next() noexcept { return mix(state_ += 0x9e3779b97f4a7c15ULL); }
  // Uniform enough for bounds far below 2^64; bound > 0.
  uint64_t below(uint64_t bound) noexcept { return next() % bound; }
  static uint64_t mix(uint64_t z) noexcept {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

}  // namespace stagelink
