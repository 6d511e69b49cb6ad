#include "transport/cma/cma_transport.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <sys/uio.h>

namespace stagelink::transport {

CmaTransport::CmaTransport(std::shared_ptr<CmaOwner> owner, AccessLanes& lanes,
                           const std::atomic<bool>& peer_lost,
                           std::vector<GuardedRow> rows) noexcept
    : owner_(std::move(owner)), rows_(lanes, peer_lost, std::move(rows)) {}

Status CmaTransport::copy(std::span<const CopyItem> items, Direction direction) {
  return rows_.inside(items,
                      [&] { return direction == Direction::kRead ? read(items) : write(items); });
}

Status CmaTransport::read(std::span<const CopyItem> items) const {
  IovecPair pieces;
  while (!items.empty()) {
    items = items.subspan(pieces.fill(items, kMostItems));
    wire::TableIdentity seen{};
    pieces.add(&seen, owner_->identity_address(), sizeof seen);
    SL_TRY(move(pieces, Direction::kRead));
    SL_TRY(owner_->check(seen));
  }
  return Status();
}

Status CmaTransport::write(std::span<const CopyItem> items) const {
  IovecPair pieces;
  while (!items.empty()) {
    items = items.subspan(pieces.fill(items, IovecPair::kMost));
    SL_TRY(look_at_owner());
    SL_TRY(move(pieces, Direction::kWrite));
    SL_TRY(look_at_owner());
  }
  return Status();
}

Status CmaTransport::look_at_owner() const {
  wire::TableIdentity seen{};
  if (const int error = owner_->read_identity(seen); error != 0) return failure(error);
  return owner_->check(seen);
}

Status CmaTransport::move(IovecPair& pieces, Direction direction) const {
  while (!pieces.empty()) {
    const auto call = direction == Direction::kRead ? ::process_vm_readv : ::process_vm_writev;
    const ssize_t moved =
        call(owner_->pid(), pieces.local(), pieces.locals(), pieces.remote(), pieces.remotes(), 0);
    if (moved > 0) {
      pieces.advance(static_cast<size_t>(moved));
    } else if (moved == 0) {
      return failure(EFAULT);
    } else if (errno != EINTR) {
      return failure(errno);
    }
  }
  return Status();
}

Status CmaTransport::failure(int error) const {
  const pid_t pid = owner_->pid();
  if (error == ESRCH || !owner_->alive()) {
    return Status(Reason::kPeerLost, fmt::format("process {} has ended", pid));
  }
  switch (error) {
    case EPERM:
      owner_->refuse();
      return Status(Reason::kBusy,
                    fmt::format("the kernel no longer lets this process copy memory of process {}; "
                                "the next batch takes another way",
                                pid));
    case EFAULT:
      return Status(Reason::kNotRegistered,
                    fmt::format("memory of the batch is not mapped, in process {} or here, though "
                                "it is registered",
                                pid));
    case ENOMEM: return Status(Reason::kNoSpace, "the kernel has no memory to copy with");
    default:
      return Status(Reason::kSystem,
                    fmt::format("copying memory of process {}: {}", pid, std::strerror(error)));
  }
}

}  // namespace stagelink::transport
