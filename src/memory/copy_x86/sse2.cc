#include "memory/copy_x86/kernels.h"

#if defined(__x86_64__)

#include <emmintrin.h>

#define SL_TARGET
#define SL_STREAM stream_sse2

namespace stagelink::memory {
namespace {

inline __attribute__((always_inline)) void stream_line(std::byte* to,
                                                       const std::byte* from) noexcept {
  const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16));
  const __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 32));
  const __m128i d = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 48));
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), a);
  _mm_stream_si128(reinterpret_cast<__m128i*>(to + 16), b);
  _mm_stream_si128(reinterpret_cast<__m128i*>(to + 32), c);
  _mm_stream_si128(reinterpret_cast<__m128i*>(to + 48), d);
}

inline __attribute__((always_inline)) void copy_part(std::byte* to, const std::byte* from,
                                                     size_t bytes) noexcept {
  copy_by_halves(to, from, bytes);
}

}  // namespace
}  // namespace stagelink::memory

#include "memory/copy_x86/batch.inc"

#endif  // __x86_64__
