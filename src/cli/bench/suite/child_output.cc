#include "cli/bench/suite/child_output.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "cli/bench/rig/core_scope.h"

namespace stagelink::cli::bench {

namespace {

Result<pid_t> spawn(std::vector<std::string>& words, int output) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  // A group of its own, so that what the child starts can be ended along with it.
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t pid = -1;
  const CoreScope all_cores;  // Which the child inherits.
  const int error =
      ::posix_spawnp(&pid, arguments[0], &actions, &attributes, arguments.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error == 0) return pid;
  return Status(Reason::kNotFound, fmt::format("{}: {}", words[0], std::strerror(error)));
}

// Until the other end is closed. Errors: timed_out.
Status read_all(int fd, const Deadline& deadline, std::string& text) {
  std::array<char, 4096> part{};
  for (;;) {
    pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&entry, 1, deadline.left_ms());
    if (ready == 0) return Status(Reason::kTimedOut, "did not end in time");
    if (ready < 0) continue;  // A signal; the deadline bounds the repeats.
    const ssize_t count = ::read(fd, part.data(), part.size());
    if (count <= 0) return Status();
    text.append(part.data(), static_cast<size_t>(count));
  }
}

}  // namespace

Result<std::string> run_child(std::vector<std::string> words, Duration timeout) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return Status(Reason::kLimit, fmt::format("pipe: {}", std::strerror(errno)));
  }
  const UniqueFd output(ends[0]);
  UniqueFd theirs(ends[1]);
  SL_ASSIGN(const pid_t pid, spawn(words, theirs.get()));
  theirs.reset();

  std::string text;
  const Status read = read_all(output.get(), Deadline::in(timeout), text);
  if (!read.ok()) ::kill(-pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!read.ok()) return Status(read.reason(), words[0] + " " + std::string(read.message()));
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return text;
  return Status(Reason::kSystem, fmt::format("{} ended with status {}", words[0],
                                             WIFEXITED(status) ? WEXITSTATUS(status) : -1));
}

}  // namespace stagelink::cli::bench
