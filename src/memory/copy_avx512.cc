#include "memory/copy_x86.h"

#if defined(__x86_64__)

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <immintrin.h>

#define SL_AVX512 __attribute__((target("avx512f,avx512bw,bmi2")))

namespace stagelink::memory {
namespace {

// Fewer than 64 bytes, without a branch for each size.
SL_AVX512 void copy_part(std::byte* to, const std::byte* from, size_t bytes) noexcept {
  const __mmask64 mask = _bzhi_u64(~uint64_t{0}, static_cast<uint32_t>(bytes));
  _mm512_mask_storeu_epi8(to, mask, _mm512_maskz_loadu_epi8(mask, from));
}

// `bytes` is a multiple of the line; `to` is aligned to it.
SL_AVX512 void stream_lines(std::byte* to, const std::byte* from, size_t bytes) noexcept {
  size_t at = 0;
  for (; at + 4 * kCacheLine <= bytes; at += 4 * kCacheLine) {
    const __m512i a = _mm512_loadu_si512(from + at);
    const __m512i b = _mm512_loadu_si512(from + at + kCacheLine);
    const __m512i c = _mm512_loadu_si512(from + at + 2 * kCacheLine);
    const __m512i d = _mm512_loadu_si512(from + at + 3 * kCacheLine);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at + kCacheLine), b);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at + 2 * kCacheLine), c);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at + 3 * kCacheLine), d);
  }
  for (; at < bytes; at += kCacheLine) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), _mm512_loadu_si512(from + at));
  }
}

}  // namespace

SL_AVX512 void copy_streaming_avx512(void* to, const void* from, size_t bytes) noexcept {
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  const size_t head =
      std::min(bytes, (kCacheLine - reinterpret_cast<uintptr_t>(out) % kCacheLine) % kCacheLine);
  if (head > 0) {
    copy_part(out, in, head);
    out += head;
    in += head;
    bytes -= head;
  }
  const size_t lines = bytes / kCacheLine * kCacheLine;
  stream_lines(out, in, lines);
  if (bytes > lines) copy_part(out + lines, in + lines, bytes - lines);
}

}  // namespace stagelink::memory

#endif  // __x86_64__
