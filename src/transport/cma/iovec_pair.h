#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <sys/uio.h>

#include "transport/transport.h"

namespace stagelink::transport {

// The two vectors of one process_vm_readv or process_vm_writev. Neighbours are merged on each side
// for itself: pages that lie scattered there and side by side here are many pieces and one.
// On the stack of who copies; what is not filled in is not initialised.
//
// Thread-safety: one thread.
class IovecPair {
 public:
  static constexpr size_t kMost = 1024;  // IOV_MAX of Linux.

  IovecPair() noexcept {}  // NOLINT: leaves 32 KiB as they are.

  // Takes as many of `items` as fit into `most` vectors on either side. Returns how many.
  size_t fill(std::span<const CopyItem> items, size_t most) noexcept;
  // One more piece at the end; there is room.
  void add(void* local, uint64_t remote, size_t bytes) noexcept;
  // The first `bytes` have been moved.
  void advance(size_t bytes) noexcept;
  // Nothing is left; then the vectors mean nothing.
  bool empty() const noexcept { return bytes_ == 0; }

  const iovec* local() const noexcept { return local_.first; }
  const iovec* remote() const noexcept { return remote_.first; }
  size_t locals() const noexcept { return local_.count; }
  size_t remotes() const noexcept { return remote_.count; }

 private:
  struct Side {
    std::array<iovec, kMost> vectors;  // Not initialised.
    iovec* first = nullptr;
    size_t count = 0;

    bool goes_on_at(const void* at) const noexcept;
    void append(void* at, size_t bytes, bool goes_on) noexcept;
    void advance(size_t bytes) noexcept;
  };

  Side local_;
  Side remote_;
  size_t bytes_ = 0;  // Left, on each side.
};

}  // namespace stagelink::transport
