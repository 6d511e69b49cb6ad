#include "memory/memfd.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory/memory_room.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace stagelink::memory {
namespace {

constexpr size_t kReserveStep = 4 << 20;      // A few milliseconds of the kernel's time.
constexpr size_t kRoomCheckBytes = 64 << 20;  // How often the room is looked at.

std::string error_text(int error) { return fmt::format("{} (errno {})", strerror(error), error); }

std::string limit_text(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : fmt::format("{}", limit.rlim_cur);
}

// Touches one byte of each page. For memory whose pages exist, so that it cannot fault.
void touch(std::span<std::byte> mapping, Populate how) noexcept {
  for (size_t at = 0; at < mapping.size(); at += page_bytes()) {
    volatile std::byte* byte = mapping.data() + at;
    const std::byte value = *byte;
    if (how == Populate::kForWriting) *byte = value;
  }
}

// Gives EINVAL before Linux 5.14. Where memory is short it fails; touching would raise SIGBUS.
int populate_by_kernel(std::span<std::byte> mapping, Populate how) noexcept {
  const int advice = how == Populate::kForWriting ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
  while (::madvise(mapping.data(), mapping.size(), advice) != 0) {
    // Interrupted: the pages it got to stay, so that the next call is shorter.
    if (errno != EINTR && errno != EAGAIN) return errno;
  }
  return 0;
}

}  // namespace

size_t page_bytes() noexcept {
  static const auto bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

Result<UniqueFd> create_memfd(const char* name) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  int fd = ::memfd_create(name, kFlags | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = ::memfd_create(name, kFlags);  // Kernel before 6.3.
  if (fd >= 0) return UniqueFd(fd);
  const int error = errno;
  if (error == EMFILE || error == ENFILE) {
    return Status(Reason::kNofile, fmt::format("memfd_create({}): {}; RLIMIT_NOFILE is {}", name,
                                               error_text(error), limit_text(RLIMIT_NOFILE)));
  }
  return Status(error == ENOMEM ? Reason::kShmFull : Reason::kSystem,
                fmt::format("memfd_create({}): {}", name, error_text(error)));
}

Status size_memfd(int fd, size_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
    return Status(Reason::kTooLarge,
                  fmt::format("{} of shareable memory were asked for, RLIMIT_FSIZE is {}",
                              readable_bytes(bytes), readable_bytes(limit.rlim_cur)));
  }
  if (::ftruncate(fd, static_cast<off_t>(bytes)) == 0) return {};
  const int error = errno;
  return Status(
      error == EFBIG || error == EINVAL ? Reason::kTooLarge : Reason::kShmFull,
      fmt::format("ftruncate of a memfd to {}: {}", readable_bytes(bytes), error_text(error)));
}

Status reserve_pages(int fd, size_t from, size_t to, int32_t numa_node) {
  size_t step = kReserveStep;
  size_t checked_to = from;
  for (size_t at = from; at < to;) {
    if (at >= checked_to) {
      SL_TRY(check_memory_room(to - at, numa_node));
      checked_to = at + kRoomCheckBytes;
    }
    const size_t length = std::min(step, to - at);
    if (::fallocate(fd, 0, static_cast<off_t>(at), static_cast<off_t>(length)) == 0) {
      at += length;
      continue;
    }
    const int error = errno;
    if (error == EINTR) {
      step = std::max(step / 2, page_bytes());
      continue;
    }
    return Status(Reason::kShmFull,
                  fmt::format("reserving {} of shareable memory stopped at {}: {}",
                              readable_bytes(to), readable_bytes(at), error_text(error)));
  }
  return {};
}

Status reserve_by_fault(std::span<std::byte> mapping, int32_t numa_node) {
  for (size_t at = 0; at < mapping.size(); at += kRoomCheckBytes) {
    SL_TRY(check_memory_room(mapping.size() - at, numa_node));
    const auto piece = mapping.subspan(at, std::min(kRoomCheckBytes, mapping.size() - at));
    // Without the call (before Linux 5.14) pages come by fallocate(), as small ones.
    if (const int error = populate_by_kernel(piece, Populate::kForWriting);
        error != 0 && error != EINVAL) {
      return Status(
          Reason::kShmFull,
          fmt::format("reserving {} of shareable memory stopped at {}: {}",
                      readable_bytes(mapping.size()), readable_bytes(at), error_text(error)));
    }
  }
  return {};
}

Status seal_memfd(int fd, Access peers) {
  int seals = F_SEAL_SHRINK | F_SEAL_GROW;
  if (peers == Access::kReadOnly) seals |= F_SEAL_FUTURE_WRITE;
  // With the last seal no peer can add one either, and so shut out the others.
  if (::fcntl(fd, F_ADD_SEALS, seals | F_SEAL_SEAL) == 0) return {};
  return Status(Reason::kSystem, fmt::format("sealing a memfd: {}", error_text(errno)));
}

Status check_foreign_memfd(int fd, size_t bytes, Holes holes) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) return Status(Reason::kCorrupt, "the peer's fd is not a memfd");
  if ((seals & F_SEAL_SHRINK) == 0 || (seals & F_SEAL_GROW) == 0) {
    return Status(Reason::kCorrupt,
                  fmt::format("the peer's memfd can change its size: seals are {:#x}", seals));
  }
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    return Status(Reason::kCorrupt, fmt::format("fstat of a memfd: {}", error_text(errno)));
  }
  if (info.st_size < 0 || static_cast<uint64_t>(info.st_size) < bytes) {
    return Status(Reason::kCorrupt, fmt::format("the peer's memfd holds {} bytes, {} are needed",
                                                info.st_size, bytes));
  }
  const uint64_t present = static_cast<uint64_t>(info.st_blocks) * 512;
  if (present < bytes && holes == Holes::kRefused) {
    return Status(
        Reason::kCorrupt,
        fmt::format("the peer's memfd has holes: {} of {} bytes are there", present, info.st_size));
  }
  return {};
}

Result<std::span<std::byte>> map_shared(int fd, size_t bytes, bool writable) {
  const size_t mapped = round_up(bytes, page_bytes());
  const size_t reserved = mapped + kHugePageBytes;
  void* raw =
      ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) {
    return Status(Reason::kLimit,
                  fmt::format("mapping {}: {}; RLIMIT_AS is {}, see also vm.max_map_count",
                              readable_bytes(reserved), error_text(errno), limit_text(RLIMIT_AS)));
  }
  auto* const begin = static_cast<std::byte*>(raw);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const size_t head = round_up(address, kHugePageBytes) - address;
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* placed = ::mmap(begin + head, mapped, protection, MAP_SHARED | MAP_FIXED, fd, 0);
  if (placed == MAP_FAILED) {
    const int error = errno;
    ::munmap(begin, reserved);
    return Status(
        error == EPERM || error == EACCES ? Reason::kCorrupt : Reason::kLimit,
        fmt::format("mapping {} of a memfd{}: {}; see vm.max_map_count", readable_bytes(mapped),
                    writable ? " for writing" : "", error_text(error)));
  }
  if (head > 0) ::munmap(begin, head);
  if (kHugePageBytes > head) ::munmap(begin + head + mapped, kHugePageBytes - head);
  return std::span(begin + head, mapped);
}

int populate(std::span<std::byte> mapping, Populate how) noexcept {
  const int error = populate_by_kernel(mapping, how);
  if (error != EINVAL) return error;
  touch(mapping, how);
  return 0;
}

void unmap(std::span<std::byte> mapping) noexcept {
  if (!mapping.empty()) ::munmap(mapping.data(), mapping.size());
}

}  // namespace stagelink::memory
