#include "memory/copy_x86.h"

#if defined(__x86_64__)

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <immintrin.h>

#define SL_AVX2 __attribute__((target("avx2")))

namespace stagelink::memory {
namespace {

SL_AVX2 void stream_line(std::byte* to, const std::byte* from) noexcept {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32));
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), a);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32), b);
}

// `bytes` is a multiple of the line; `to` is aligned to it.
SL_AVX2 void stream_lines(std::byte* to, const std::byte* from, size_t bytes) noexcept {
  size_t at = 0;
  for (; at + 2 * kCacheLine <= bytes; at += 2 * kCacheLine) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at + 32));
    const __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at + 64));
    const __m256i d = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at + 96));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at + 32), b);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at + 64), c);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at + 96), d);
  }
  if (at < bytes) stream_line(to + at, from + at);
}

}  // namespace

SL_AVX2 void copy_streaming_avx2(void* to, const void* from, size_t bytes) noexcept {
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  const size_t head =
      std::min(bytes, (kCacheLine - reinterpret_cast<uintptr_t>(out) % kCacheLine) % kCacheLine);
  if (head > 0) std::memcpy(out, in, head);
  out += head;
  in += head;
  bytes -= head;
  const size_t lines = bytes / kCacheLine * kCacheLine;
  stream_lines(out, in, lines);
  if (bytes > lines) std::memcpy(out + lines, in + lines, bytes - lines);
}

}  // namespace stagelink::memory

#endif  // __x86_64__
