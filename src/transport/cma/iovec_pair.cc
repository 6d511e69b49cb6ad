#include "transport/cma/iovec_pair.h"

#include <algorithm>

namespace stagelink::transport {
namespace {

void* pointer(uint64_t address) noexcept {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address in the other process.
  return reinterpret_cast<void*>(address);
}

}  // namespace

size_t IovecPair::fill(std::span<const CopyItem> items, size_t most) noexcept {
  for (Side* side : {&local_, &remote_}) {
    side->first = side->vectors.data();
    side->count = 0;
  }
  bytes_ = 0;
  size_t taken = 0;
  for (const CopyItem& item : items) {
    void* const there = pointer(item.remote);
    const bool joins_here = local_.goes_on_at(item.local);
    const bool joins_there = remote_.goes_on_at(there);
    if ((!joins_here && local_.count == most) || (!joins_there && remote_.count == most)) break;
    local_.append(item.local, item.bytes, joins_here);
    remote_.append(there, item.bytes, joins_there);
    bytes_ += item.bytes;
    ++taken;
  }
  return taken;
}

void IovecPair::add(void* local, uint64_t remote, size_t bytes) noexcept {
  local_.append(local, bytes, false);
  remote_.append(pointer(remote), bytes, false);
  bytes_ += bytes;
}

void IovecPair::advance(size_t bytes) noexcept {
  bytes_ -= bytes;
  if (bytes_ == 0) return;  // As nearly always: there is no need to go through all pieces.
  local_.advance(bytes);
  remote_.advance(bytes);
}

bool IovecPair::Side::goes_on_at(const void* at) const noexcept {
  if (count == 0) return false;
  const iovec& last = first[count - 1];
  return static_cast<const std::byte*>(last.iov_base) + last.iov_len == at;
}

void IovecPair::Side::append(void* at, size_t bytes, bool goes_on) noexcept {
  if (goes_on) {
    first[count - 1].iov_len += bytes;
  } else {
    first[count++] = {at, bytes};
  }
}

void IovecPair::Side::advance(size_t bytes) noexcept {
  while (count != 0) {
    const size_t part = std::min(bytes, first->iov_len);
    first->iov_base = static_cast<std::byte*>(first->iov_base) + part;
    first->iov_len -= part;
    bytes -= part;
    if (first->iov_len != 0) return;
    ++first;
    --count;
  }
}

}  // namespace stagelink::transport
