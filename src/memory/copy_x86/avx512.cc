#include "memory/copy_x86/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define SL_TARGET __attribute__((target("avx512f,avx512bw,bmi2")))
#define SL_STREAM stream_avx512

namespace stagelink::memory {
namespace {

SL_TARGET inline __attribute__((always_inline)) void stream_line(std::byte* to,
                                                                 const std::byte* from) noexcept {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
}

SL_TARGET inline __attribute__((always_inline)) void copy_part(std::byte* to, const std::byte* from,
                                                               size_t bytes) noexcept {
  const __mmask64 mask = _bzhi_u64(~uint64_t{0}, static_cast<uint32_t>(bytes));
  _mm512_mask_storeu_epi8(to, mask, _mm512_maskz_loadu_epi8(mask, from));
}

}  // namespace
}  // namespace stagelink::memory

#include "memory/copy_x86/batch.inc"

#endif  // __x86_64__
