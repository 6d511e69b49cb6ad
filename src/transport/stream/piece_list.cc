#include "transport/stream/piece_list.h"

#include <algorithm>
#include <cstring>

#include "memory/copy_kernel.h"

namespace stagelink::transport {
namespace {

constexpr size_t kKeptPieces = 64 << 10;  // One MiB of them.
// Small pieces lie anywhere, and the processor does not guess where: it is told this many ahead.
constexpr size_t kAhead = 6;
constexpr uint64_t kLineBytes = 64;

void fetch(const iovec& piece) noexcept {
  const auto* const at = static_cast<const std::byte*>(piece.iov_base);
  for (uint64_t line = 0; line < std::min<uint64_t>(piece.iov_len, 512); line += kLineBytes) {
    __builtin_prefetch(at + line);
  }
}

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

size_t PieceList::copy_out(std::span<std::byte> bytes) const noexcept {
  size_t done = 0;
  uint64_t skip = into_;
  for (size_t i = at_; i < pieces_.size() && done < bytes.size(); ++i) {
    if (i + kAhead < pieces_.size()) fetch(pieces_[i + kAhead]);
    const size_t size = std::min<size_t>(pieces_[i].iov_len - skip, bytes.size() - done);
    std::memcpy(bytes.data() + done, static_cast<std::byte*>(pieces_[i].iov_base) + skip, size);
    done += size;
    skip = 0;
  }
  return done;
}

// Nobody reads them soon, so their lines are not read either: see memory/copy_kernel.h.
void PieceList::copy_in(std::span<const std::byte> bytes) const noexcept {
  static const memory::CopyKernel kernel = memory::pick_copy_kernel(0);
  size_t count = 0;
  uint64_t end = 0;
  while (end < into_ + bytes.size()) end += pieces_[at_ + count++].iov_len;
  size_t done = 0;
  kernel.copy_many(count, [&](size_t i) {  // In order.
    const uint64_t skip = i == 0 ? into_ : 0;
    const iovec& piece = pieces_[at_ + i];
    const size_t size = std::min<size_t>(piece.iov_len - skip, bytes.size() - done);
    done += size;
    return memory::CopyPiece{static_cast<std::byte*>(piece.iov_base) + skip,
                             bytes.data() + done - size, size};
  });
  memory::copy_fence();
}

bool PieceList::shorter_ahead(uint64_t bytes) const noexcept {
  return left_ < (pieces_.size() - at_) * bytes && pieces_.size() - at_ > 1;
}

void PieceList::advance(uint64_t bytes) noexcept {
  left_ -= bytes;
  bytes += into_;
  while (at_ < pieces_.size() && bytes >= pieces_[at_].iov_len) bytes -= pieces_[at_++].iov_len;
  into_ = bytes;
}

}  // namespace stagelink::transport
