#include "base/process_id.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace stagelink {
namespace {

struct ProcStat {
  char state = '?';
  long threads = 0;
  uint64_t start_time = 0;
};

std::optional<ProcStat> read_proc_stat(pid_t pid) noexcept {
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%d/stat", static_cast<int>(pid));
  const UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
  if (!fd) return std::nullopt;
  char text[1024];
  const ssize_t got = ::read(fd.get(), text, sizeof text - 1);
  if (got <= 0) return std::nullopt;
  text[got] = '\0';
  // The name (field 2) may hold spaces and parentheses; it ends at the last one.
  const char* at = std::strrchr(text, ')');
  if (at == nullptr || at[1] != ' ') return std::nullopt;
  at += 2;
  ProcStat out;
  out.state = *at;  // Field 3.
  for (int field = 3; field < 22; ++field) {
    if (field == 20) out.threads = std::strtol(at, nullptr, 10);
    at = std::strchr(at, ' ');
    if (at == nullptr) return std::nullopt;
    ++at;
  }
  out.start_time = std::strtoull(at, nullptr, 10);
  return out;
}

// A leader that has ended shows as a zombie while its other threads run on.
bool is_zombie(const ProcStat& stat) noexcept {
  return (stat.state == 'Z' || stat.state == 'X') && stat.threads <= 1;
}

uint64_t own_pid_namespace() noexcept {
  struct stat info {};
  return ::stat("/proc/self/ns/pid", &info) == 0 ? static_cast<uint64_t>(info.st_ino) : 0;
}

}  // namespace

ProcessId ProcessId::self() noexcept {
  ProcessId id;
  id.pid = ::getpid();
  id.pid_namespace = own_pid_namespace();
  if (const auto stat = read_proc_stat(id.pid)) id.start_time = stat->start_time;
  return id;
}

Liveness liveness_of(const ProcessId& process) noexcept {
  if (process.pid_namespace != own_pid_namespace()) return Liveness::kUnknown;
  if (process.pid <= 0) return Liveness::kDead;
  if (::kill(process.pid, 0) != 0 && errno == ESRCH) return Liveness::kDead;
  const auto stat = read_proc_stat(process.pid);
  if (!stat.has_value()) return Liveness::kAlive;  // Hidden from us, but it exists.
  const bool same = process.start_time == 0 || stat->start_time == process.start_time;
  return same && !is_zombie(*stat) ? Liveness::kAlive : Liveness::kDead;
}

bool pid_in_use(pid_t pid) noexcept {
  if (pid <= 0) return false;
  if (::kill(pid, 0) != 0 && errno == ESRCH) return false;
  const auto stat = read_proc_stat(pid);
  return !stat.has_value() || !is_zombie(*stat);
}

}  // namespace stagelink
