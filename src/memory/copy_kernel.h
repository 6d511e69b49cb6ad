#pragma once

#include <cstddef>
#include <cstdint>

namespace stagelink::memory {

// Copies like memcpy; from streaming_min_bytes on with non-temporal stores, which leave the cache
// alone and save the read of the destination's lines. After the last streaming copy of a unit of
// work, call copy_fence() before anything tells another thread that the bytes are there.
struct CopyKernel {
  void (*streaming)(void* to, const void* from, size_t bytes) noexcept;
  size_t streaming_min_bytes;
  const char* name;  // "avx512", "avx2", "sse2", "generic"

  void copy(void* to, const void* from, size_t bytes) const noexcept {
    if (bytes >= streaming_min_bytes) {
      streaming(to, from, bytes);
    } else {
      __builtin_memcpy(to, from, bytes);
    }
  }
};

void copy_fence() noexcept;

// The widest kernel that this processor runs. `streaming_min_bytes` 0: the calibrated default of
// this kind of processor (see docs/performance.md for how it was found).
CopyKernel pick_copy_kernel(size_t streaming_min_bytes) noexcept;

}  // namespace stagelink::memory
