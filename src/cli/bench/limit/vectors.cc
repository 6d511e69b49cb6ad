#include "cli/bench/limit/vectors.h"

#include <algorithm>

namespace stagelink::cli::bench {

std::span<iovec> VectorWalk::next() noexcept {
  const size_t count = std::min(window_.size(), pieces_.size() - at_);
  std::copy_n(pieces_.begin() + static_cast<std::ptrdiff_t>(at_), count, window_.begin());
  if (count > 0) {
    window_[0].iov_base = static_cast<std::byte*>(window_[0].iov_base) + done_in_piece_;
    window_[0].iov_len -= done_in_piece_;
  }
  return std::span(window_).first(count);
}

void VectorWalk::moved(size_t bytes) noexcept {
  while (bytes > 0 && at_ < pieces_.size()) {
    const size_t left = pieces_[at_].iov_len - done_in_piece_;
    if (bytes < left) {
      done_in_piece_ += bytes;
      return;
    }
    bytes -= left;
    ++at_;
    done_in_piece_ = 0;
  }
}

}  // namespace stagelink::cli::bench
