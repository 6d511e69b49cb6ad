#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <sys/uio.h>

namespace stagelink::transport {

// Pieces of memory in the order in which a stream fills or sends them, and a position among them.
// Does not own the memory. Keeps its capacity over clear() unless that is large.
//
// Thread-safety: none; used by one thread.
class PieceList {
 public:
  void clear() noexcept;
  // Empty pieces are left out; a piece that continues the last one lengthens it.
  void add(std::byte* at, uint64_t bytes);
  // Describes the next bytes, at most `max_bytes`; returns how many entries of `into` it used.
  size_t gather(std::span<iovec> into, uint64_t max_bytes) const noexcept;
  void advance(uint64_t bytes) noexcept;  // At most left().
  // Copies the next bytes out of the memory, or into it, as many as `bytes` holds and at most
  // left(); the position stays.
  size_t copy_out(std::span<std::byte> bytes) const noexcept;
  void copy_in(std::span<const std::byte> bytes) const noexcept;
  // Several pieces ahead, shorter than `bytes` on average.
  bool shorter_ahead(uint64_t bytes) const noexcept;
  uint64_t left() const noexcept { return left_; }

  // Pieces that the kernel takes longer to find than to copy: for a socket they are copied
  // together.
  static constexpr uint64_t kSmallBytes = 1024;
  // Pieces that two processes copy through a staging area, one each, faster than the kernel alone.
  static constexpr uint64_t kStagedBytes = 16 << 10;

 private:
  std::vector<iovec> pieces_;
  size_t at_ = 0;      // The piece that holds the position,
  uint64_t into_ = 0;  // and how much of it lies before.
  uint64_t left_ = 0;
};

}  // namespace stagelink::transport
