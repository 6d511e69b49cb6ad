#include "broker/mappings.h"

#include <fcntl.h>
#include <unistd.h>

namespace stagelink::broker {
namespace {

constexpr int kLowestFd = 64;  // Out of the way of what expects small ones.

}  // namespace

void Mappings::mapped(void* address, size_t bytes, int fd, off_t offset) noexcept {
  const int kept = ::fcntl(fd, F_DUPFD_CLOEXEC, kLowestFd);
  if (kept < 0) return;  // Its values are copied then.
  const MutexLock lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.id != 0) continue;
    entry = {++last_id_, reinterpret_cast<uintptr_t>(address), bytes, static_cast<uint64_t>(offset),
             kept};
    return;
  }
  ::close(kept);
}

void Mappings::unmapped(void* address, size_t bytes) noexcept {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const MutexLock lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.id == 0 || entry.begin >= begin + bytes || begin >= entry.begin + entry.bytes)
      continue;
    ::close(entry.fd);
    entry = {};
    ++changes_;
  }
}

std::optional<Mappings::Found> Mappings::find(const void* address, uint64_t bytes) const noexcept {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const MutexLock lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.id == 0 || at < entry.begin || at - entry.begin > entry.bytes) continue;
    const uint64_t inside = at - entry.begin;
    if (entry.bytes - inside < bytes) continue;
    return Found{entry.id, entry.offset + entry.bytes, entry.offset + inside};
  }
  return std::nullopt;
}

const Mappings::Entry* Mappings::entry(uint64_t id) const noexcept {
  for (const Entry& entry : entries_) {
    if (entry.id == id) return &entry;
  }
  return nullptr;
}

UniqueFd Mappings::descriptor(uint64_t id) const noexcept {
  const MutexLock lock(mutex_);
  const Entry* const found = entry(id);
  return UniqueFd(found == nullptr ? -1 : ::fcntl(found->fd, F_DUPFD_CLOEXEC, kLowestFd));
}

uint64_t Mappings::changes() const noexcept {
  const MutexLock lock(mutex_);
  return changes_;
}

bool Mappings::alive(uint64_t id) const noexcept {
  const MutexLock lock(mutex_);
  return entry(id) != nullptr;
}

uint64_t Mappings::take_id() noexcept {
  const MutexLock lock(mutex_);
  return ++last_id_;
}

}  // namespace stagelink::broker
