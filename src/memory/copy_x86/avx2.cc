#include "memory/copy_x86/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define SL_TARGET __attribute__((target("avx2")))
#define SL_STREAM stream_avx2

namespace stagelink::memory {
namespace {

SL_TARGET inline __attribute__((always_inline)) void stream_line(std::byte* to,
                                                                 const std::byte* from) noexcept {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32));
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), a);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32), b);
}

SL_TARGET inline __attribute__((always_inline)) void copy_part(std::byte* to, const std::byte* from,
                                                               size_t bytes) noexcept {
  copy_by_halves(to, from, bytes);
}

}  // namespace
}  // namespace stagelink::memory

#include "memory/copy_x86/batch.inc"

#endif  // __x86_64__
