#include "transport/stream/piece_list.h"

#include <algorithm>

namespace stagelink::transport {
namespace {

constexpr size_t kKeptPieces = 64 << 10;  // One MiB of them.

}  // namespace

void PieceList::clear() noexcept {
  if (pieces_.capacity() > kKeptPieces) {
    pieces_ = {};
  } else {
    pieces_.clear();
  }
  at_ = 0;
  into_ = 0;
  left_ = 0;
}

void PieceList::add(std::byte* at, uint64_t bytes) {
  if (bytes == 0) return;
  left_ += bytes;
  if (!pieces_.empty()) {
    iovec& last = pieces_.back();
    if (static_cast<std::byte*>(last.iov_base) + last.iov_len == at) {
      last.iov_len += bytes;
      return;
    }
  }
  pieces_.push_back({at, bytes});
}

size_t PieceList::gather(std::span<iovec> into, uint64_t max_bytes) const noexcept {
  size_t used = 0;
  uint64_t skip = into_;
  for (size_t i = at_; i < pieces_.size() && used < into.size() && max_bytes > 0; ++i) {
    const uint64_t bytes = std::min<uint64_t>(pieces_[i].iov_len - skip, max_bytes);
    into[used++] = {static_cast<std::byte*>(pieces_[i].iov_base) + skip, bytes};
    max_bytes -= bytes;
    skip = 0;
  }
  return used;
}

void PieceList::advance(uint64_t bytes) noexcept {
  left_ -= bytes;
  bytes += into_;
  while (at_ < pieces_.size() && bytes >= pieces_[at_].iov_len) bytes -= pieces_[at_++].iov_len;
  into_ = bytes;
}

}  // namespace stagelink::transport
