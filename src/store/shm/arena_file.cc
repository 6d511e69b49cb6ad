#include "store/shm/arena_file.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "memory/memfd.h"
#include "memory/memory_room.h"

namespace stagelink::store::shm {
namespace {

using memory::readable_bytes;

Status failed(const char* call, const std::string& path, int error) {
  const Reason reason = error == EMFILE || error == ENFILE  ? Reason::kNofile
                        : error == EACCES || error == EPERM ? Reason::kPermission
                        : error == ENOENT                   ? Reason::kNotFound
                        : error == EEXIST                   ? Reason::kAlreadyExists
                        : error == ENOSPC                   ? Reason::kShmFull
                                                            : Reason::kSystem;
  return Status(reason, fmt::format("{} {}: {}", call, path, std::strerror(error)));
}

Status too_small(const ArenaOptions& options, uint64_t bytes, const std::string& have) {
  return Status(Reason::kShmFull,
                fmt::format("arena `{}`: need {} in {}, {}. Make `capacity` ({}) or `max_objects` "
                            "({}) smaller, or the file system larger (mount -o remount,size=..., "
                            "docker --shm-size), or name another `directory`",
                            options.name, readable_bytes(bytes), options.directory, have,
                            readable_bytes(options.capacity), options.max_objects));
}

struct flock member_byte(uint32_t member) noexcept {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(member);
  lock.l_len = 1;
  return lock;
}

}  // namespace

std::string arena_path(const ArenaOptions& options) {
  return fmt::format("{}/stagelink-{}.{}.arena", options.directory, ::geteuid(), options.name);
}

Result<UniqueFd> open_arena_file(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (!fd) return failed("open", path, errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return failed("fstat", path, errno);
  if (!S_ISREG(info.st_mode)) {
    return Status(Reason::kCorrupt, fmt::format("{} is not a regular file", path));
  }
  if (info.st_uid != ::geteuid() || (info.st_mode & 022) != 0) {
    return Status(Reason::kOtherUser,
                  fmt::format("{} belongs to user {} and has mode {:04o}; it must be this user's "
                              "({}) and nobody else may write to it",
                              path, info.st_uid, info.st_mode & 07777, ::geteuid()));
  }
  return fd;
}

Result<UniqueFd> make_arena_file(const ArenaOptions& options, uint64_t bytes) {
  const std::string& directory = options.directory;
  struct statvfs room {};
  if (::statvfs(directory.c_str(), &room) != 0) return failed("statvfs", directory, errno);
  const uint64_t free_bytes = uint64_t{room.f_bavail} * room.f_frsize;
  const uint64_t all_bytes = uint64_t{room.f_blocks} * room.f_frsize;
  // A file system without a size says that it has no blocks.
  if (all_bytes != 0 && free_bytes < bytes) {
    return too_small(options, bytes,
                     fmt::format("which has {} free of {}", readable_bytes(free_bytes),
                                 readable_bytes(all_bytes)));
  }
  UniqueFd fd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!fd) return failed("open(O_TMPFILE)", directory, errno);
  if (const Status status = memory::size_memfd(fd.get(), bytes); !status.ok()) {
    return Status(status.reason(), fmt::format("{}: {}", directory, status.message()));
  }
  return fd;
}

Status reserve_arena_file(int fd, const ArenaOptions& options, uint64_t from, uint64_t to) {
  const Status status = memory::reserve_pages(fd, from, to, /*numa_node=*/-1);
  if (status.ok()) return {};
  if (status.reason() != Reason::kShmFull) return status;
  return too_small(options, to, fmt::format("but {}", status.message()));
}

Status link_arena_file(int fd, const std::string& path) {
  const std::string source = fmt::format("/proc/self/fd/{}", fd);
  if (::linkat(AT_FDCWD, source.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0) return {};
  return failed("linkat", path, errno);
}

void unlink_arena_file(int fd, const std::string& path) noexcept {
  struct stat ours {};
  struct stat named {};
  if (::fstat(fd, &ours) != 0 || ::lstat(path.c_str(), &named) != 0) return;
  if (ours.st_ino == named.st_ino && ours.st_dev == named.st_dev) (void)::unlink(path.c_str());
}

Result<uint64_t> arena_file_bytes(int fd, const std::string& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return failed("fstat", path, errno);
  const uint64_t present = static_cast<uint64_t>(info.st_blocks) * 512;
  const auto bytes = static_cast<uint64_t>(info.st_size);
  if (present >= bytes) return bytes;
  return Status(Reason::kCorrupt,
                fmt::format("{}: only {} of its {} bytes are there", path, present, bytes));
}

bool lock_member_byte(int fd, uint32_t member) noexcept {
  struct flock lock = member_byte(member);
  return ::fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

void unlock_member_byte(int fd, uint32_t member) noexcept {
  struct flock lock = member_byte(member);
  lock.l_type = F_UNLCK;
  (void)::fcntl(fd, F_OFD_SETLK, &lock);
}

bool is_member_byte_locked(int fd, uint32_t member) noexcept {
  struct flock lock = member_byte(member);
  // When in doubt it is: nobody's memory is taken away on a guess.
  return ::fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace stagelink::store::shm
