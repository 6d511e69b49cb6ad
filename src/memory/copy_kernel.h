#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace stagelink::memory {

// One range of a batch: `bytes` from `from` to `to`. The ranges of a batch do not overlap.
struct CopyPiece {
  void* to;
  const void* from;
  size_t bytes;
};

// Copies like memcpy; from streaming_min_bytes on with non-temporal stores, which leave the cache
// alone and save the read of the destination's lines. After the last streaming copy of a unit of
// work, call copy_fence() before anything tells another thread that the bytes are there.
//
// Thread-safety: a value; copies may run at the same time.
struct CopyKernel {
  void (*stream)(const CopyPiece* pieces, size_t count) noexcept;
  size_t streaming_min_bytes;
  const char* name;  // "avx512", "avx2", "sse2", "generic"

  void copy(void* to, const void* from, size_t bytes) const noexcept {
    if (bytes >= streaming_min_bytes) {
      const CopyPiece piece{to, from, bytes};
      stream(&piece, 1);
    } else {
      __builtin_memcpy(to, from, bytes);
    }
  }

  // Copies piece_at(0) to piece_at(count - 1), in any order. piece_at(i) gives a CopyPiece and is
  // called once for each i. Much faster than one copy() for each: see copy_x86/batch.inc.
  template <typename PieceAt>
  void copy_many(size_t count, const PieceAt& piece_at) const noexcept {
    std::array<CopyPiece, kChunk> large;
    std::array<CopyPiece, kChunk> small;
    for (size_t at = 0; at < count;) {
      size_t larges = 0;
      size_t smalls = 0;
      for (; at < count && larges < kChunk && smalls < kChunk; ++at) {
        const CopyPiece piece = piece_at(at);
        (piece.bytes >= streaming_min_bytes ? large[larges++] : small[smalls++]) = piece;
      }
      if (smalls > 0) copy_small({small.data(), smalls});
      if (larges > 0) stream(large.data(), larges);
    }
  }

  static constexpr size_t kChunk = 64;

 private:
  static void copy_small(std::span<const CopyPiece> pieces) noexcept;
};

void copy_fence() noexcept;

// The widest kernel that this processor runs. `streaming_min_bytes` 0: the calibrated default of
// that kernel (docs/memory.md says how it was found).
CopyKernel pick_copy_kernel(size_t streaming_min_bytes) noexcept;

// All kernels that this processor runs, the widest first: for tests and measurements.
std::span<const CopyKernel> runnable_copy_kernels() noexcept;

}  // namespace stagelink::memory
