#include "engine/link/shared_view.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "base/futex.h"

namespace stagelink::engine {
namespace {

constexpr size_t kFds = 4;
constexpr uint32_t kMaxTableCapacity = 1U << 24;

Status check_page(const wire::PeerPage& page, const wire::Welcome& welcome) {
  if (page.magic != wire::kPeerPageMagic || page.nonce != welcome.page_nonce ||
      page.lane_count != wire::kLaneCount || page.ring_bytes != wire::kRingBytes) {
    return Status(Reason::kCorrupt, "the peer page does not match the welcome");
  }
  return Status();
}

Status check_table(const wire::TableHeader& table, const wire::Welcome& welcome) {
  SL_TRY(wire::check_version({table.version_major, table.version_minor}, "region table"));
  if (table.magic != wire::kTableMagic || table.capacity != welcome.table_capacity ||
      table.entry_bytes != sizeof(wire::TableEntry) ||
      InstanceId{table.instance_high, table.instance_low} != welcome.instance) {
    return Status(Reason::kCorrupt, "the region table does not match the welcome");
  }
  return Status();
}

// What we write to must neither block nor raise a signal, which a pipe or a socket would.
Status check_bell(int fd) {
  char kind[64];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t size = ::readlink(link.c_str(), kind, sizeof kind);
  const int flags = ::fcntl(fd, F_GETFL);
  if (size < 0 || flags < 0) {
    return Status(Reason::kSystem, link + " cannot be looked at: " + std::strerror(errno));
  }
  if (std::string_view(kind, static_cast<size_t>(size)) != "anon_inode:[eventfd]" ||
      (flags & O_NONBLOCK) == 0) {
    return Status(Reason::kCorrupt, "the doorbell of the welcome is no eventfd that never blocks");
  }
  return Status();
}

}  // namespace

Result<std::unique_ptr<SharedView>> SharedView::open(const wire::Welcome& welcome,
                                                     std::vector<UniqueFd> fds) {
  if (fds.size() != kFds) {
    return Status(Reason::kFrame, "the welcome came without its four fds");
  }
  if (welcome.table_capacity == 0 || welcome.table_capacity > kMaxTableCapacity) {
    return Status(Reason::kFrame, "welcome: table_capacity is out of range");
  }
  Parts parts;
  SL_ASSIGN(parts.table,
            memory::SharedPages::open(std::move(fds[0]), wire::table_bytes(welcome.table_capacity),
                                      /*writable=*/false));
  SL_ASSIGN(parts.page, memory::SharedPages::open(std::move(fds[1]), wire::kPeerPageBytes,
                                                  /*writable=*/true));
  SL_ASSIGN(parts.doorbell, memory::SharedPages::open(std::move(fds[2]), wire::kDoorbellBytes,
                                                      /*writable=*/true));
  parts.bell = std::move(fds[3]);
  SL_TRY(check_table(*parts.table.at<wire::TableHeader>(), welcome));
  SL_TRY(check_page(*parts.page.at<wire::PeerPage>(), welcome));
  SL_TRY(check_bell(parts.bell.get()));
  return std::unique_ptr<SharedView>(new SharedView(welcome.table_capacity, std::move(parts)));
}

SharedView::SharedView(uint32_t table_capacity, Parts parts) noexcept
    : table_capacity_(table_capacity),
      table_(std::move(parts.table)),
      page_(std::move(parts.page)),
      doorbell_(std::move(parts.doorbell)),
      bell_(std::move(parts.bell)),
      lanes_(page(), table()) {}

const wire::TableEntry* SharedView::row(uint32_t index) const noexcept {
  if (index >= table_capacity_) return nullptr;
  return table_.at<wire::TableEntry>(wire::kTableEntriesOffset) + index;
}

uint32_t SharedView::rows_used() const noexcept {
  return std::min(table().rows_used.load(), table_capacity_);
}

void SharedView::ring_bell() noexcept {
  std::atomic<uint32_t>& armed = doorbell_.at<wire::Doorbell>()->armed;
  // Sequentially consistent, after the ring's tail: the sleeper arms, then looks at the tail.
  if (armed.load() == 0) return;
  const uint32_t taken = armed.exchange(0);
  if ((taken & wire::kBellFutex) != 0) futex_wake_all(armed, FutexScope::kShared);
  if ((taken & wire::kBellEvent) == 0) return;
  // One that is full rings already; its owner could make the write block.
  pollfd bell{bell_.get(), POLLOUT, 0};
  if (::poll(&bell, 1, 0) != 1) return;
  const uint64_t one = 1;
  while (::write(bell_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

}  // namespace stagelink::engine
