#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "cli/replay/workload/layout.h"
#include "cli/replay/workload/workload.h"

namespace stagelink::cli::replay {

// Writes all pieces of `block` of the pool with the content of `key`.
void fill_block(const Layout& layout, std::span<std::byte> pool, const BlockKey& key,
                uint32_t block) noexcept;

// The first place in a block that holds something else than it should.
struct WrongPlace {
  uint32_t layer = 0;
  uint32_t part = 0;
  uint32_t token = 0;  // Within the id.
  uint32_t head = 0;
  std::string to_string(const BlockKey& key) const;
};

// Compares every byte.
std::optional<WrongPlace> check_block(const Layout& layout, std::span<const std::byte> pool,
                                      const BlockKey& key, uint32_t block) noexcept;

}  // namespace stagelink::cli::replay
