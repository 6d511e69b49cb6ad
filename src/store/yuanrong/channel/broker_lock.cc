#include "store/yuanrong/channel/broker_lock.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace stagelink::store::yuanrong {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr auto kLockRetry = 5ms;
constexpr std::string_view kLockEnd = ".lock";
constexpr std::string_view kSocketBegin = "yuanrong-";
constexpr std::string_view kLogsBegin = "/tmp/stagelink-yuanrong-";

std::string lock_of(const std::string& socket) { return socket + std::string(kLockEnd); }

Status lock_trouble(const char* what, const std::string& path) {
  return Status(Reason::kSystem, fmt::format("{} {}: {}", what, path, std::strerror(errno)));
}

bool same_file(int fd, const std::string& path) noexcept {
  struct stat mine {};
  struct stat named {};
  return ::fstat(fd, &mine) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
}

UniqueFd open_lock(const std::string& path, int more) {
  return UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | more, 0600));
}

bool try_flock(const UniqueFd& lock) noexcept {
  return ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0;
}

// Of the open file, not of the process: closing another descriptor does not end it.
bool try_life(const UniqueFd& lock) noexcept {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  return ::fcntl(lock.get(), F_OFD_SETLK, &whole) == 0;
}

struct LockText {
  pid_t pid = 0;
  std::string logs;
};

// "<pid> <folder>".
LockText read_text(int fd) {
  std::array<char, 512> bytes{};
  const ssize_t got = ::pread(fd, bytes.data(), bytes.size(), 0);
  const std::string_view all(bytes.data(), got < 0 ? 0 : static_cast<size_t>(got));
  LockText text;
  const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), text.pid);
  if (error != std::errc() || text.pid <= 1) return {};
  const auto at = static_cast<size_t>(end - all.data());
  if (at < all.size() && all[at] == ' ') text.logs = all.substr(at + 1);
  return text;
}

// The folder is private to this user, but what stands in a file is not obeyed blindly.
void remove_logs(const std::string& logs) {
  struct stat info {};
  if (logs.compare(0, kLogsBegin.size(), kLogsBegin) != 0 ||
      logs.find('/', kLogsBegin.size()) != logs.npos || ::lstat(logs.c_str(), &info) != 0 ||
      !S_ISDIR(info.st_mode) || info.st_uid != ::geteuid()) {
    return;
  }
  std::error_code error;
  fs::remove_all(logs, error);
}

void unlink_files(const std::string& socket) noexcept {
  ::unlink(socket.c_str());
  ::unlink((socket + ".new").c_str());
  ::unlink(lock_of(socket).c_str());
}

}  // namespace

// A broker removes the file at its end: whoever gets the lock on one that has no name any more,
// tries again.
Result<UniqueFd> lock_to_start(const std::string& socket, const Deadline& deadline) {
  const std::string path = lock_of(socket);
  for (;;) {
    UniqueFd lock = open_lock(path, O_CREAT);
    if (!lock) return lock_trouble("open", path);
    if (try_flock(lock)) {
      if (same_file(lock.get(), path)) return lock;
      continue;
    }
    if (errno != EWOULDBLOCK && errno != EINTR) return lock_trouble("lock", path);
    if (deadline.passed()) {
      return Status(
          Reason::kConnectTimeout,
          fmt::format("{}: another process is starting the broker and has not finished", path));
    }
    std::this_thread::sleep_for(kLockRetry);
  }
}

Result<UniqueFd> claim_broker_files(const std::string& socket, std::string_view logs) {
  const std::string path = lock_of(socket);
  UniqueFd lock = open_lock(path, 0);
  if (!lock && errno == ENOENT) {
    return Status(Reason::kNotFound, path + ": was removed while the broker started");
  }
  if (!lock) return lock_trouble("open", path);
  const LockText before = read_text(lock.get());
  if (!try_life(lock)) {
    return Status(Reason::kAlreadyExists,
                  fmt::format("{}: another broker, pid {}, lives, and nobody listens at its socket",
                              path, before.pid));
  }
  remove_logs(before.logs);
  const std::string text = fmt::format("{} {}", ::getpid(), logs);
  if (::ftruncate(lock.get(), 0) != 0 ||
      ::pwrite(lock.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return lock_trouble("write", path);
  }
  return lock;
}

bool give_up_broker_files(const std::string& socket, const UniqueFd& claimed) {
  const std::string path = lock_of(socket);
  const UniqueFd lock = open_lock(path, 0);
  if (!lock || !same_file(claimed.get(), path)) return true;
  if (!try_flock(lock)) return false;
  if (same_file(claimed.get(), path)) unlink_files(socket);
  return true;
}

pid_t broker_pid(const std::string& socket) {
  const UniqueFd lock = open_lock(lock_of(socket), 0);
  return lock ? read_text(lock.get()).pid : 0;
}

int remove_dead_brokers(const std::string& folder) {
  int removed = 0;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string path = at->path().string();
    const std::string name = at->path().filename().string();
    if (name.size() <= kLockEnd.size() || name.compare(0, kSocketBegin.size(), kSocketBegin) != 0 ||
        name.compare(name.size() - kLockEnd.size(), kLockEnd.size(), kLockEnd) != 0) {
      continue;
    }
    const UniqueFd lock = open_lock(path, 0);
    if (!lock || !try_flock(lock) || !same_file(lock.get(), path) || !try_life(lock)) continue;
    remove_logs(read_text(lock.get()).logs);
    unlink_files(path.substr(0, path.size() - kLockEnd.size()));
    ++removed;
  }
  return removed;
}

}  // namespace stagelink::store::yuanrong
