#include "memory/copy_x86.h"

#if defined(__x86_64__)

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <emmintrin.h>

namespace stagelink::memory {
namespace {

// `bytes` is a multiple of the line; `to` is aligned to it.
void stream_lines(std::byte* to, const std::byte* from, size_t bytes) noexcept {
  for (size_t at = 0; at < bytes; at += kCacheLine) {
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at));
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at + 16));
    const __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at + 32));
    const __m128i d = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at + 48));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + at), a);
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + at + 16), b);
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + at + 32), c);
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + at + 48), d);
  }
}

}  // namespace

void copy_streaming_sse2(void* to, const void* from, size_t bytes) noexcept {
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
