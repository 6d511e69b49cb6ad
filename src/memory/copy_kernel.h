#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace stagelink::memory {

// One range of a batch: `bytes` from `from` to `to`, which do not overlap.
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
  void (*streaming)(void* to, const void* from, size_t bytes) noexcept;
  size_t streaming_min_bytes;
  const char* name;  // "avx512", "avx2", "sse2", "generic"

  void copy(void* to, const void* from, size_t bytes) const noexcept {
    if (bytes >= streaming_min_bytes) {
      streaming(to, from, bytes);
    } else {
      __builtin_memcpy(to, from, bytes);
    }
  }

  // Copies piece_at(0) to piece_at(count - 1) in order, and asks for the beginnings of later pieces
  // while it copies earlier ones. Scattered pieces miss the TLB and the first cache lines each
  // time; asked for in time, they are there. piece_at(i) gives a CopyPiece, is called twice for
  // each i and must be cheap.
  template <typename PieceAt>
  void copy_many(size_t count, const PieceAt& piece_at) const noexcept {
    const size_t ahead = std::min(count, kPrefetchPieces);
    for (size_t i = 0; i < ahead; ++i) prefetch(piece_at(i));
    for (size_t i = 0; i < count; ++i) {
      if (i + kPrefetchPieces < count) prefetch(piece_at(i + kPrefetchPieces));
      const CopyPiece piece = piece_at(i);
      copy(piece.to, piece.from, piece.bytes);
    }
  }

  // How many pieces and how many cache lines of each are asked for (docs/memory.md has the
  // figures).
  static constexpr size_t kPrefetchPieces = 8;
  static constexpr size_t kPrefetchLines = 4;

 private:
  void prefetch(const CopyPiece& piece) const noexcept {
    constexpr size_t kLine = 64;
    const size_t bytes = std::min(piece.bytes, kPrefetchLines * kLine);
    const auto* const from = static_cast<const char*>(piece.from);
    for (size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(from + at, 0, 3);
    if (piece.bytes >= streaming_min_bytes) return;
    // Ordinary stores read the destination's lines first.
    const auto* const to = static_cast<const char*>(piece.to);
    for (size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(to + at, 1, 3);
  }
};

void copy_fence() noexcept;

// The widest kernel that this processor runs. `streaming_min_bytes` 0: the calibrated default of
// that kernel (docs/memory.md says how it was found).
CopyKernel pick_copy_kernel(size_t streaming_min_bytes) noexcept;

// All kernels that this processor runs, the widest first: for tests and measurements.
std::span<const CopyKernel> runnable_copy_kernels() noexcept;

}  // namespace stagelink::memory
