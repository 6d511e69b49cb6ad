#include "cli/replay/rank_process.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/runtime_dir.h"

namespace stagelink::cli::replay {
namespace {

Status system_failure(const char* what) {
  const Reason reason = errno == EMFILE || errno == ENFILE ? Reason::kNofile : Reason::kSystem;
  return Status(reason, fmt::format("starting a rank: {}: {}", what, std::strerror(errno)));
}

// Between fork and exec: async-signal-safe calls only.
[[noreturn]] void become_rank(int socket, pid_t parent, const char* name) {
  // SIGTERM gives the rank a moment to remove its files (see rank_main.cc).
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(1);
  if (socket == kControlFd) {
    ::fcntl(socket, F_SETFD, 0);
  } else {
    ::dup2(socket, kControlFd);
  }
  ::execl("/proc/self/exe", "stagelink", "replay-rank", name, nullptr);
  ::_exit(127);
}

std::string describe_ending(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("was killed by signal {} ({})", WTERMSIG(status),
                       ::strsignal(WTERMSIG(status)));
  }
  return fmt::format("exited with code {}", WEXITSTATUS(status));
}

}  // namespace

void remove_traces(const std::string& runtime_dir) {
  for (const std::string& dir : runtime_dir_candidates(runtime_dir)) {
    if (reclaim_dead_entries(dir) > 0) remove_if_empty(dir);
  }
}

Result<std::unique_ptr<RankProcess>> RankProcess::start(const RankConfig& config) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return system_failure("socketpair");
  }
  UniqueFd here(ends[0]);
  const UniqueFd there(ends[1]);
  // What `ps` shows; the configuration itself comes over the channel.
  const std::string role = fmt::format("{}-{}", name_of(config.role), config.rank);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return system_failure("fork");
  if (pid == 0) become_rank(there.get(), parent, role.c_str());

  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  std::unique_ptr<RankProcess> process(
      new RankProcess(fmt::format("{} rank {} (pid {})", name_of(config.role), config.rank, pid),
                      pid, std::move(pidfd), ControlChannel(std::move(here))));
  if (!process->pidfd_) return system_failure("pidfd_open");
  auto start = to_json(config);
  start["event"] = "start";
  process->channel_.send(start);
  return process;
}

RankProcess::RankProcess(std::string name, pid_t pid, UniqueFd pidfd, ControlChannel channel)
    : name_(std::move(name)), pid_(pid), pidfd_(std::move(pidfd)), channel_(std::move(channel)) {}

void RankProcess::pump() {
  channel_.flush();
  channel_.fill();
}

Result<std::unique_ptr<RankHandle>> LocalRanks::start(const RankConfig& config) {
  SL_ASSIGN(auto process, RankProcess::start(config));
  return std::unique_ptr<RankHandle>(std::move(process));
}

RankProcess::~RankProcess() {
  kill();
  reap(Deadline::in(Duration::zero()));
}

void RankProcess::kill() noexcept {
  if (pid_ > 0) ::kill(pid_, SIGKILL);
}

const std::string& RankProcess::reap(const Deadline& deadline) {
  if (pid_ <= 0) return ending_;
  pollfd ended = {pidfd_.get(), POLLIN, 0};
  while (pidfd_ && ::poll(&ended, 1, deadline.left_ms()) < 0 && errno == EINTR) {
  }
  const bool in_time = (ended.revents & POLLIN) != 0;
  if (!in_time) kill();
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  ending_ = describe_ending(status);
  if (!in_time) ending_ += ", because it did not end by itself";
  ended_well_ = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return ending_;
}

}  // namespace stagelink::cli::replay
