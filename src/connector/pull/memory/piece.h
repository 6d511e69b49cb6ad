#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace stagelink::pull {

class PoolMemory;

// A share in a piece of a connector's pool. The memory goes back when the last share has gone: that
// of whoever filled or got it, and that of each put that offers it. It may outlive the connector.
//
// Thread-safety: shares may be copied and dropped by any thread; the bytes are for their users to
// order.
class Piece {
 public:
  Piece() noexcept = default;

  explicit operator bool() const noexcept { return memory_ != nullptr; }
  std::span<std::byte> bytes() const noexcept { return bytes_; }
  // The same memory, its first bytes only. They must be there.
  Piece first(uint64_t bytes) const noexcept {
    Piece piece(*this);
    piece.bytes_ = bytes_.first(bytes);
    return piece;
  }

 private:
  friend class Pool;
  Piece(std::shared_ptr<const PoolMemory> memory, std::span<std::byte> bytes) noexcept
      : memory_(std::move(memory)), bytes_(bytes) {}

  std::shared_ptr<const PoolMemory> memory_;
  std::span<std::byte> bytes_;
};

}  // namespace stagelink::pull
