#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "memory/copy_kernel.h"

// The copy kernels for x86-64, one file each, compiled for their instructions alone: callers ask
// the processor first. Each handles any alignment and any size. What they share is in
// copy_x86/batch.inc.
namespace stagelink::memory {

inline constexpr size_t kCacheLine = 64;

void stream_avx512(const CopyPiece* pieces, size_t count) noexcept;
void stream_avx2(const CopyPiece* pieces, size_t count) noexcept;
void stream_sse2(const CopyPiece* pieces, size_t count) noexcept;

template <size_t kBytes>
inline __attribute__((always_inline)) void copy_if(size_t bytes, std::byte*& to,
                                                   const std::byte*& from) noexcept {
  if ((bytes & kBytes) == 0) return;
  __builtin_memcpy(to, from, kBytes);
  to += kBytes;
  from += kBytes;
}

// Fewer than 64 bytes, without a call.
inline __attribute__((always_inline)) void copy_by_halves(std::byte* to, const std::byte* from,
                                                          size_t bytes) noexcept {
  copy_if<32>(bytes, to, from);
  copy_if<16>(bytes, to, from);
  copy_if<8>(bytes, to, from);
  copy_if<4>(bytes, to, from);
  copy_if<2>(bytes, to, from);
  copy_if<1>(bytes, to, from);
}

}  // namespace stagelink::memory
