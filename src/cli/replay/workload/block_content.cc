#include "cli/replay/workload/block_content.h"

#include <fmt/format.h>

#include "cli/replay/workload/content.h"

namespace stagelink::cli::replay {
namespace {

PieceKey piece_key(const Layout& layout, const BlockKey& key, uint32_t plane) noexcept {
  return {key.id, plane, key.first_token, layout.token_bytes()};
}

}  // namespace

void fill_block(const Layout& layout, std::span<std::byte> pool, const BlockKey& key,
                uint32_t block) noexcept {
  for (uint32_t plane = 0; plane < layout.planes(); ++plane) {
    fill_piece(piece_key(layout, key, plane),
               pool.subspan(layout.offset(plane, block), layout.piece_bytes()));
  }
}

std::optional<WrongPlace> check_block(const Layout& layout, std::span<const std::byte> pool,
                                      const BlockKey& key, uint32_t block) noexcept {
  for (uint32_t plane = 0; plane < layout.planes(); ++plane) {
    const auto piece = pool.subspan(layout.offset(plane, block), layout.piece_bytes());
    const auto wrong = find_wrong_word(piece_key(layout, key, plane), piece);
    if (!wrong) continue;
    const auto token = static_cast<uint32_t>(*wrong / layout.token_bytes());
    const auto head = static_cast<uint32_t>(*wrong % layout.token_bytes() / layout.vector_bytes);
    return WrongPlace{plane / layout.parts, plane % layout.parts, key.first_token + token, head};
  }
  return {};
}

std::string WrongPlace::to_string(const BlockKey& key) const {
  return fmt::format("id {} token {} layer {} part {} head {}", key.id, token, layer, part, head);
}

}  // namespace stagelink::cli::replay
