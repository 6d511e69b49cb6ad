#include "memory/copy_kernel.h"

#include <array>
#include <atomic>
#include <cstring>
#include <limits>

#include "memory/copy_x86/kernels.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace stagelink::memory {
namespace {

constexpr size_t kNever = std::numeric_limits<size_t>::max();

void stream_generic(const CopyPiece* pieces, size_t count) noexcept {
  for (size_t i = 0; i < count; ++i) std::memcpy(pieces[i].to, pieces[i].from, pieces[i].bytes);
}

// Rows in order of width; which of them run is asked of the processor once.
struct KernelTable {
  std::array<CopyKernel, 4> rows{};
  size_t count = 0;

  KernelTable() noexcept {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("bmi2")) {
      rows[count++] = {stream_avx512, 128, "avx512"};
    }
    if (__builtin_cpu_supports("avx2")) rows[count++] = {stream_avx2, 256, "avx2"};
    rows[count++] = {stream_sse2, 256, "sse2"};
#endif
    rows[count++] = {stream_generic, kNever, "generic"};
  }
};

}  // namespace

void CopyKernel::copy_small(std::span<const CopyPiece> pieces) noexcept {
  // Ordinary stores read the destination's lines first, so both sides are asked for in time.
  constexpr size_t kAhead = 8;
  const auto prefetch = [](const CopyPiece& piece) {
    __builtin_prefetch(piece.from, 0, 3);
    __builtin_prefetch(piece.to, 1, 3);
  };
  for (size_t i = 0; i < pieces.size() && i < kAhead; ++i) prefetch(pieces[i]);
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (i + kAhead < pieces.size()) prefetch(pieces[i + kAhead]);
    std::memcpy(pieces[i].to, pieces[i].from, pieces[i].bytes);
  }
}

std::span<const CopyKernel> runnable_copy_kernels() noexcept {
  static const KernelTable table;
  return std::span(table.rows).first(table.count);
}

CopyKernel pick_copy_kernel(size_t streaming_min_bytes) noexcept {
  CopyKernel kernel = runnable_copy_kernels().front();
  if (streaming_min_bytes != 0) kernel.streaming_min_bytes = streaming_min_bytes;
  return kernel;
}

void copy_fence() noexcept {
#if defined(__x86_64__)
  _mm_sfence();  // Non-temporal stores are not ordered by the releases of the C++ memory model.
#else
  std::atomic_thread_fence(std::memory_order_release);
#endif
}

}  // namespace stagelink::memory
