#pragma once

#include <cstddef>

// The copy kernels for x86-64, one file each, compiled for their instructions alone: callers ask
// the processor first. Each handles any alignment and any size.
//
// All share one shape: a head of ordinary stores up to a cache line of the destination, whole lines
// by non-temporal stores (a line written in part would be read back), and a tail.
namespace stagelink::memory {

inline constexpr size_t kCacheLine = 64;
inline constexpr size_t kSmallPage = 4096;

void copy_streaming_avx512(void* to, const void* from, size_t bytes) noexcept;
void copy_streaming_avx2(void* to, const void* from, size_t bytes) noexcept;
void copy_streaming_sse2(void* to, const void* from, size_t bytes) noexcept;

}  // namespace stagelink::memory
