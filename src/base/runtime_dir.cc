#include "base/runtime_dir.h"

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <thread>

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/deadline.h"
#include "base/log.h"

namespace stagelink {
namespace {

// sun_path holds 107 characters; "/<pid up to 7 digits>-<8 hex>.sock" takes 22 of them.
static_assert(kMaxRuntimeDirBytes == sizeof(sockaddr_un::sun_path) - 1 - 22);
constexpr time_t kSettleSeconds = 5;  // Far longer than from bind() to listen().
constexpr int kInitTries = 100;
constexpr auto kReclaimTime = std::chrono::seconds(5);  // Far longer than from flock() to unlink().

Reason reason_of_errno(int error) noexcept {
  switch (error) {
    case EACCES:
    case EPERM:
    case EROFS: return Reason::kPermission;
    case ENOENT: return Reason::kNotFound;
    case ENOTDIR:
    case ENAMETOOLONG:
    case ELOOP: return Reason::kInvalidArgument;
    case ENOSPC:
    case EDQUOT: return Reason::kNoSpace;
    case EMFILE:
    case ENFILE: return Reason::kNofile;
    default: return Reason::kSystem;
  }
}

Status dir_failure(const std::string& path, const char* what, int error) {
  return Status(reason_of_errno(error),
                fmt::format("runtime_dir {}: {}: {}", path, what, std::strerror(error)));
}

Status entry_failure(const std::string& path, const char* what, int error) {
  return Status(reason_of_errno(error),
                fmt::format("{}: {}: {}", path, what, std::strerror(error)));
}

Status check_dir(const std::string& path, const struct stat& info) {
  if (info.st_uid != ::geteuid()) {
    return Status(Reason::kOtherUser,
                  fmt::format("runtime_dir {} belongs to uid {}, this process runs as uid {}; "
                              "choose another directory",
                              path, info.st_uid, ::geteuid()));
  }
  const unsigned mode = info.st_mode & 07777U;
  if ((mode & 022U) != 0) {
    return Status(Reason::kPermission,
                  fmt::format("runtime_dir {} has mode {:04o}: group or others may write to it; "
                              "use chmod 0700",
                              path, mode));
  }
  if (::faccessat(AT_FDCWD, path.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    return dir_failure(path, fmt::format("mode {:04o}", mode).c_str(), errno);
  }
  return {};
}

// `follow`: whether the last component may be a symbolic link. In a directory that others write to
// (/dev/shm, /tmp) it may not.
Status prepare_dir(const std::string& path, bool follow) {
  if (path.size() > kMaxRuntimeDirBytes) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("runtime_dir {}: {} characters; a socket inside it allows at most {}",
                              path, path.size(), kMaxRuntimeDirBytes));
  }
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return dir_failure(path, "cannot create", errno);
  }
  const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | (follow ? 0 : O_NOFOLLOW);
  const UniqueFd fd(::open(path.c_str(), flags));
  struct stat info {};
  if (!fd) {
    const int error = errno;
    // A directory that we may not read: its owner tells more than EACCES does.
    if (error == EACCES && ::lstat(path.c_str(), &info) == 0) SL_TRY(check_dir(path, info));
    return dir_failure(path, "cannot open", error);
  }
  if (::fstat(fd.get(), &info) != 0) return dir_failure(path, "cannot stat", errno);
  return check_dir(path, info);
}

std::string absolute(const std::string& path) {
  std::string out = path;
  if (out.front() != '/') {
    char buffer[4096];
    if (::getcwd(buffer, sizeof buffer) != nullptr) out = std::string(buffer) + "/" + path;
  }
  while (out.size() > 1 && out.back() == '/') out.pop_back();
  return out;
}

bool nobody_listens(const std::string& path) noexcept {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return false;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return false;
  return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
         errno == ECONNREFUSED;
}

bool is_settled(const std::string& path) noexcept {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 &&
         ::time(nullptr) - info.st_mtim.tv_sec > kSettleSeconds;
}

enum class StatFile : uint8_t { kMissing, kAlive, kDead };

StatFile judge_stat_file(const std::string& path, pid_t pid) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd) return errno == ENOENT ? StatFile::kMissing : StatFile::kAlive;
  EntryOwner owner;
  const bool whole = ::pread(fd.get(), &owner, sizeof owner, 0) == sizeof owner &&
                     owner.magic == EntryOwner::kMagic && owner.pid == pid;
  if (whole) {
    const ProcessId id{owner.pid, owner.start_time, owner.pid_namespace};
    const Liveness liveness = liveness_of(id);
    if (liveness == Liveness::kAlive) return StatFile::kAlive;
    if (liveness == Liveness::kDead) return StatFile::kDead;
  } else if (pid_in_use(pid) || !is_settled(path)) {
    return StatFile::kAlive;  // Not an engine's: those are whole when they get their name.
  }
  // The owner's lock ends with it, also in another pid namespace.
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return StatFile::kAlive;
  return StatFile::kDead;
}

bool has_name(const UniqueFd& file) noexcept {
  struct stat info {};
  return ::fstat(file.get(), &info) == 0 && info.st_nlink > 0;
}

// An .init file is locked from the moment after its creation until its owner ends, so nobody's lock
// means nobody's file. It is removed under the lock, so that whoever locks it later, another
// reclaimer or its creator, sees that it has no name any more; the name may be a new file's.
bool remove_dead_init(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  return fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0 && has_name(fd) &&
         ::unlink(path.c_str()) == 0;
}

// Whether the new file at `path` is ours; false if a reclaimer was faster and removes it.
Result<bool> lock_init(const UniqueFd& file, const std::string& path) {
  const Deadline deadline = Deadline::in(kReclaimTime);
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    // A reclaimer holds it, from its lock to its unlink.
    if (errno != EWOULDBLOCK || deadline.passed()) return entry_failure(path, "cannot lock", errno);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return has_name(file);
}

bool is_dead_socket(const std::string& dir, const std::string& path, const RuntimeEntry& entry) {
  if (!nobody_listens(path)) return false;
  switch (judge_stat_file(dir + "/" + entry.stem + ".stat", entry.pid)) {
    case StatFile::kAlive: return false;
    case StatFile::kDead: return true;
    case StatFile::kMissing: break;
  }
  return !pid_in_use(entry.pid) && is_settled(path);
}

std::vector<RuntimeEntry> list_entries(const std::string& dir) {
  std::vector<RuntimeEntry> out;
  DIR* handle = ::opendir(dir.c_str());
  if (handle == nullptr) return out;
  while (const dirent* item = ::readdir(handle)) {
    if (auto entry = parse_runtime_entry(item->d_name)) out.push_back(*std::move(entry));
  }
  ::closedir(handle);
  return out;
}

}  // namespace

std::vector<std::string> runtime_dir_candidates(const std::string& configured) {
  if (!configured.empty()) return {absolute(configured)};
  std::vector<std::string> out;
  const char* xdg = std::getenv("XDG_RUNTIME_DIR");
  if (xdg != nullptr && xdg[0] == '/') out.push_back(absolute(xdg) + "/stagelink");
  out.push_back(fmt::format("/dev/shm/stagelink-{}", ::geteuid()));
  out.push_back(fmt::format("/tmp/stagelink-{}", ::geteuid()));
  return out;
}

Result<std::string> runtime_dir(const std::string& configured) {
  const std::vector<std::string> candidates = runtime_dir_candidates(configured);
  if (!configured.empty()) {
    SL_TRY(prepare_dir(candidates.front(), true));
    return candidates.front();
  }
  std::string causes;
  for (const std::string& path : candidates) {
    const Status status = prepare_dir(path, false);
    if (status.ok()) {
      if (&path == &candidates.back()) {
        log(LogLevel::kWarning, "runtime_dir",
            fmt::format("using {}: {}; set runtime_dir to a directory of your own", path, causes));
      }
      return path;
    }
    causes += (causes.empty() ? "" : "; ") + std::string(status.message());
  }
  return Status(Reason::kPermission, "no usable runtime directory: " + causes);
}

std::string runtime_entry_path(const std::string& dir, pid_t pid, const InstanceId& instance,
                               std::string_view kind) {
  return fmt::format("{}/{}-{}.{}", dir, pid, instance.to_string().substr(0, 8), kind);
}

std::optional<RuntimeEntry> parse_runtime_entry(std::string_view file_name) {
  RuntimeEntry entry;
  const char* const end = file_name.data() + file_name.size();
  const auto [after, error] = std::from_chars(file_name.data(), end, entry.pid);
  if (error != std::errc{} || entry.pid <= 0 || file_name.front() == '0') return std::nullopt;
  const std::string_view rest(after, static_cast<size_t>(end - after));
  if (rest.size() != 14 || rest[0] != '-' || rest[9] != '.') return std::nullopt;
  if (rest.substr(1, 8).find_first_not_of("0123456789abcdef") != std::string_view::npos) {
    return std::nullopt;
  }
  entry.kind = rest.substr(10);
  const bool is_socket = entry.kind == "sock" || entry.kind == "pull";
  if (!is_socket && entry.kind != "stat" && entry.kind != "init") return std::nullopt;
  entry.stem = file_name.substr(0, file_name.size() - 5);
  return entry;
}

Result<UniqueFd> create_init_entry(const std::string& path) {
  for (int i = 0; i < kInitTries; ++i) {
    UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file) return entry_failure(path, "cannot create", errno);
    const auto ours = lock_init(file, path);
    if (!ours.ok()) {
      ::unlink(path.c_str());
      return ours.status();
    }
    if (*ours) return file;
  }
  return Status(Reason::kSystem, fmt::format("{}: removed {} times while new", path, kInitTries));
}

int reclaim_dead_entries(const std::string& dir) {
  int removed = 0;
  const std::vector<RuntimeEntry> entries = list_entries(dir);
  // Sockets first: their judgement reads the .stat file beside them.
  for (const std::string_view kind : {"sock", "pull", "stat", "init"}) {
    for (const RuntimeEntry& entry : entries) {
      if (entry.kind != kind) continue;
      const std::string path = dir + "/" + entry.stem + "." + entry.kind;
      if (kind == "init") {
        removed += remove_dead_init(path) ? 1 : 0;
        continue;
      }
      const bool dead = kind == "stat" ? judge_stat_file(path, entry.pid) == StatFile::kDead
                                       : is_dead_socket(dir, path, entry);
      if (dead && ::unlink(path.c_str()) == 0) ++removed;
    }
  }
  return removed;
}

void remove_if_empty(const std::string& dir) noexcept { ::rmdir(dir.c_str()); }

}  // namespace stagelink
