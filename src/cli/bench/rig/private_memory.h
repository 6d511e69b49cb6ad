#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "stagelink/result.h"

namespace stagelink::cli::bench {

// Anonymous memory of this process at 2 MiB alignment, advised to be huge pages and touched.
//
// Thread-safety: const methods may run at the same time.
class PrivateMemory {
 public:
  // Errors: no_space.
  static Result<PrivateMemory> create(size_t bytes);
  PrivateMemory(PrivateMemory&& other) noexcept
      : mapping_(std::exchange(other.mapping_, {})), bytes_(std::exchange(other.bytes_, {})) {}
  PrivateMemory& operator=(PrivateMemory&& other) noexcept {
    std::swap(mapping_, other.mapping_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  PrivateMemory(const PrivateMemory&) = delete;
  PrivateMemory& operator=(const PrivateMemory&) = delete;
  ~PrivateMemory();

  std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  PrivateMemory() noexcept = default;
  std::span<std::byte> mapping_;
  std::span<std::byte> bytes_;
};

}  // namespace stagelink::cli::bench
