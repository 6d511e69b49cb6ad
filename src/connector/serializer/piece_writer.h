#pragma once

#include <cstddef>
#include <span>

#include "memory/copy_kernel.h"

namespace stagelink::serializer {

// Fills pieces of memory one after the other, as one run. The caller has checked that what it
// writes fits.
//
// Thread-safety: none; an encoder's own.
class PieceWriter {
 public:
  PieceWriter(std::span<const std::span<std::byte>> pieces, const memory::CopyKernel& kernel);

  void append(std::span<const std::byte> bytes) noexcept;
  void zeros(size_t bytes) noexcept;
  // The place of the next `bytes`, which are taken as written; empty if no one piece has them.
  std::span<std::byte> claim(size_t bytes) noexcept;
  const memory::CopyKernel& kernel() const noexcept { return kernel_; }

 private:
  // The rest of the first piece that has one.
  std::span<std::byte> room() noexcept;

  std::span<const std::span<std::byte>> pieces_;
  std::span<std::byte> left_;
  const memory::CopyKernel& kernel_;
};

}  // namespace stagelink::serializer
