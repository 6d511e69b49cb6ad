#include "transport/shm/shm_transport.h"

#include <utility>

namespace stagelink::transport {

ShmTransport::ShmTransport(AccessLanes& lanes, const std::atomic<bool>& peer_lost,
                           const memory::CopyKernel& kernel, std::vector<GuardedRow> rows) noexcept
    : kernel_(kernel), rows_(lanes, peer_lost, std::move(rows)) {}

Status ShmTransport::copy(std::span<const CopyItem> items, Direction direction) {
  return rows_.inside(items, [&] {
    move_bytes(items, direction);
    return Status();
  });
}

void ShmTransport::move_bytes(std::span<const CopyItem> items, Direction direction) const noexcept {
  if (direction == Direction::kRead) {
    kernel_.copy_many(items.size(), [&](size_t i) {
      return memory::CopyPiece{items[i].local, reinterpret_cast<const void*>(items[i].remote),
                               items[i].bytes};
    });
  } else {
    kernel_.copy_many(items.size(), [&](size_t i) {
      return memory::CopyPiece{reinterpret_cast<void*>(items[i].remote), items[i].local,
                               items[i].bytes};
    });
  }
  memory::copy_fence();
}

}  // namespace stagelink::transport
