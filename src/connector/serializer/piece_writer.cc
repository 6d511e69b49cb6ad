#include "connector/serializer/piece_writer.h"

#include <algorithm>
#include <cstring>

namespace stagelink::serializer {

PieceWriter::PieceWriter(std::span<const std::span<std::byte>> pieces,
                         const memory::CopyKernel& kernel)
    : pieces_(pieces), kernel_(kernel) {}

std::span<std::byte> PieceWriter::room() noexcept {
  while (left_.empty() && !pieces_.empty()) {
    left_ = pieces_.front();
    pieces_ = pieces_.subspan(1);
  }
  return left_;
}

void PieceWriter::append(std::span<const std::byte> bytes) noexcept {
  while (!bytes.empty()) {
    const auto to = room();
    if (to.empty()) return;
    const size_t count = std::min(to.size(), bytes.size());
    kernel_.copy(to.data(), bytes.data(), count);
    left_ = left_.subspan(count);
    bytes = bytes.subspan(count);
  }
}

void PieceWriter::zeros(size_t bytes) noexcept {
  while (bytes > 0) {
    const auto to = room();
    if (to.empty()) return;
    const size_t count = std::min(to.size(), bytes);
    std::memset(to.data(), 0, count);
    left_ = left_.subspan(count);
    bytes -= count;
  }
}

std::span<std::byte> PieceWriter::claim(size_t bytes) noexcept {
  const auto to = room();
  if (to.size() < bytes) return {};
  left_ = left_.subspan(bytes);
  return to.first(bytes);
}

}  // namespace stagelink::serializer
