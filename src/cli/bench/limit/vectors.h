#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <sys/uio.h>

namespace stagelink::cli::bench {

// Walks over pieces of memory in calls of at most so many vectors, however many bytes each call
// moves.
//
// Thread-safety: one thread.
class VectorWalk {
 public:
  explicit VectorWalk(size_t most_vectors) { window_.resize(most_vectors); }

  // `pieces` must live until the walk is over.
  void begin(std::span<const iovec> pieces) noexcept {
    pieces_ = pieces;
    at_ = 0;
    done_in_piece_ = 0;
  }
  bool over() const noexcept { return at_ == pieces_.size(); }
  // The vectors of the next call.
  std::span<iovec> next() noexcept;
  void moved(size_t bytes) noexcept;

 private:
  std::span<const iovec> pieces_;
  std::vector<iovec> window_;
  size_t at_ = 0;
  size_t done_in_piece_ = 0;
};

}  // namespace stagelink::cli::bench
