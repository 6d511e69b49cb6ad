#include "transport/cma/cma_owner.h"

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "transport/cma/cma_refusal.h"

namespace stagelink::transport {
namespace {

// Linux 6.5; not in the headers that we build with.
constexpr int kSoPeerPidfd = 77;

// The pid of a credential may already be another's; the identity decides.
Result<UniqueFd> pidfd_of(int control, pid_t pid) {
  int fd = -1;
  socklen_t size = sizeof fd;
  if (::getsockopt(control, SOL_SOCKET, kSoPeerPidfd, &fd, &size) == 0) return UniqueFd(fd);
  fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (fd >= 0) return UniqueFd(fd);
  if (errno == ESRCH) return Status(Reason::kPeerLost, fmt::format("process {} has ended", pid));
  if (errno == EMFILE || errno == ENFILE) return Status(Reason::kNofile, "no fd for a pidfd");
  return Status(Reason::kUnsupported, fmt::format("pidfd_open: {}", std::strerror(errno)));
}

wire::TableIdentity identity_of(const wire::TableHeader& table) noexcept {
  return {table.magic,    table.version_major, table.version_minor,
          table.capacity, table.instance_high, table.instance_low};
}

}  // namespace

CmaOwner::CmaOwner(pid_t pid, UniqueFd pidfd, uint64_t identity_address,
                   const wire::TableIdentity& identity) noexcept
    : pid_(pid),
      pidfd_(std::move(pidfd)),
      identity_address_(identity_address),
      identity_(identity) {}

Result<std::shared_ptr<CmaOwner>> CmaOwner::probe(int control, const wire::TableHeader& table) {
  const uint64_t address = table.identity_address;
  if (address == 0) {
    return Status(
        Reason::kUnsupported,
        "the peer does not offer it: cma is not among its transports, or it has a secret, "
        "or it is older");
  }
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(control, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return Status(Reason::kSystem, fmt::format("SO_PEERCRED: {}", std::strerror(errno)));
  }
  if (peer.pid <= 0) {
    return Status(Reason::kUnsupported, "the peer's pid namespace is not seen from this one");
  }
  auto pidfd = pidfd_of(control, peer.pid);
  if (!pidfd.ok()) return pidfd.status();
  auto owner = std::make_shared<CmaOwner>(peer.pid, *std::move(pidfd), address, identity_of(table));
  wire::TableIdentity seen{};
  if (const int error = owner->read_identity(seen); error != 0) {
    return why_refused(error, peer.pid, peer.uid);
  }
  SL_TRY(owner->check(seen));
  return owner;
}

int CmaOwner::read_identity(wire::TableIdentity& seen) const noexcept {
  const iovec here{&seen, sizeof seen};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address in the other process.
  const iovec there{reinterpret_cast<void*>(identity_address_), sizeof seen};
  ssize_t got = 0;
  do {
    got = ::process_vm_readv(pid_, &here, 1, &there, 1, 0);
  } while (got < 0 && errno == EINTR);
  return got < 0 ? errno : 0;  // Less than all of it is another identity.
}

Status CmaOwner::check(const wire::TableIdentity& seen) const {
  if (!(seen == identity_)) {
    return Status(Reason::kRestarted,
                  fmt::format("process {} is not, or no longer, the engine we connected to", pid_));
  }
  if (!alive()) return Status(Reason::kPeerLost, fmt::format("process {} has ended", pid_));
  return Status();
}

bool CmaOwner::alive() const noexcept {
  pollfd ended{pidfd_.get(), POLLIN, 0};
  int ready = 0;
  do {
    ready = ::poll(&ended, 1, 0);
  } while (ready < 0 && errno == EINTR);
  return ready == 0;
}

}  // namespace stagelink::transport
