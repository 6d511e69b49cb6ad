#pragma once

#include <cstddef>
#include <span>

#include "stagelink/result.h"

namespace stagelink::cli::replay {

// Private anonymous memory, in huge pages where the kernel has them, touched up front.
//
// Thread-safety: const methods may run at the same time.
class HugeMemory {
 public:
  // Errors: no_space names the size.
  static Result<HugeMemory> create(size_t bytes);
  HugeMemory(HugeMemory&& other) noexcept;
  HugeMemory& operator=(HugeMemory&& other) noexcept;
  HugeMemory(const HugeMemory&) = delete;
  HugeMemory& operator=(const HugeMemory&) = delete;
  ~HugeMemory();

  std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  explicit HugeMemory(std::span<std::byte> mapping, std::span<std::byte> bytes) noexcept
      : mapping_(mapping), bytes_(bytes) {}
  std::span<std::byte> mapping_;
  std::span<std::byte> bytes_;  // Aligned to a huge page.
};

}  // namespace stagelink::cli::replay
