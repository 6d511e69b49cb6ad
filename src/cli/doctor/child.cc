#include "cli/doctor/child.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/unique_fd.h"

extern char** environ;

namespace stagelink::cli::doctor {
namespace {

Status start_failure(const std::string& program, int error) {
  const std::string what = fmt::format("{}: {}", program, std::strerror(error));
  switch (error) {
    case ENOENT: return Status(Reason::kNotFound, what);
    case EACCES:
    case EPERM:
    case ENOEXEC: return Status(Reason::kPermission, what);
    default: return Status(Reason::kLimit, what);
  }
}

// In a process group of its own, so that all of it can be ended.
Result<pid_t> start(const std::vector<std::string>& command, int output) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, command.front().c_str(), &actions, &attributes,
                                  arguments.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return start_failure(command.front(), error);
  return pid;
}

// Until the end of the output; false at the deadline.
bool read_all(int fd, std::string& text, const Deadline& deadline) {
  std::array<char, 4096> buffer;
  for (;;) {
    pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&waiting, 1, deadline.left_ms());
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return true;
    const size_t room = kMaxChildBytes - text.size();
    text.append(buffer.data(), std::min(room, static_cast<size_t>(got)));
    if (deadline.passed()) return false;
  }
}

// A child that has closed its outputs may still live.
bool wait_until(int pidfd, const Deadline& deadline) {
  for (;;) {
    pollfd ended{.fd = pidfd, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&ended, 1, deadline.left_ms());
    if (ready < 0 && errno == EINTR) continue;
    return ready > 0;
  }
}

int reap(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace

Result<ChildOutput> run_program(const std::vector<std::string>& command, const Deadline& deadline) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return Status(Reason::kNofile, fmt::format("pipe: {}", std::strerror(errno)));
  }
  const UniqueFd output(ends[0]);
  UniqueFd input(ends[1]);
  SL_ASSIGN(const pid_t pid, start(command, input.get()));
  input.reset();
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  ChildOutput out;
  const bool whole =
      read_all(output.get(), out.text, deadline) && (!pidfd || wait_until(pidfd.get(), deadline));
  if (!whole) ::kill(-pid, SIGKILL);
  out.exit_code = reap(pid);
  if (whole) return out;
  return Status(Reason::kTimedOut,
                fmt::format("{} did not end in time and was killed", fmt::join(command, " ")));
}

}  // namespace stagelink::cli::doctor
