#include "memory/copy_kernel.h"

#include <array>
#include <atomic>
#include <cstring>
#include <limits>

#include "memory/copy_x86.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace stagelink::memory {
namespace {

constexpr size_t kNever = std::numeric_limits<size_t>::max();

void copy_generic(void* to, const void* from, size_t bytes) noexcept {
  std::memcpy(to, from, bytes);
}

// Rows in order of width; which of them run is asked of the processor once.
struct KernelTable {
  std::array<CopyKernel, 4> rows{};
  size_t count = 0;

  KernelTable() noexcept {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("bmi2")) {
      rows[count++] = {copy_streaming_avx512, 256, "avx512"};
    }
    if (__builtin_cpu_supports("avx2")) rows[count++] = {copy_streaming_avx2, 256, "avx2"};
    rows[count++] = {copy_streaming_sse2, 256, "sse2"};
#endif
    rows[count++] = {copy_generic, kNever, "generic"};
  }
};

}  // namespace

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
