#include "integration/hot_path/traced_child.h"

#include <cerrno>
#include <csignal>

#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

namespace stagelink::test {

namespace {

// A mark is a close() of a descriptor that cannot exist.
constexpr int kFirstMark = -1000;
constexpr int kRefused = 117;
constexpr int kSyscallStop = SIGTRAP | 0x80;

std::optional<uint32_t> mark_of(const __ptrace_syscall_info& info) noexcept {
  if (info.entry.nr != SYS_close) return std::nullopt;
  const int fd = static_cast<int>(info.entry.args[0]);
  if (fd > kFirstMark) return std::nullopt;
  return static_cast<uint32_t>(kFirstMark - fd);
}

// Counts a stop of `thread` if it is the entry to a system call.
void count_stop(pid_t thread, uint32_t& window, CallsByMark& calls) {
  __ptrace_syscall_info info{};
  if (::ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof info, &info) <= 0) return;
  if (info.op != PTRACE_SYSCALL_INFO_ENTRY) return;
  if (const auto number = mark_of(info)) {
    window = *number;
  } else if (window != 0) {
    ++calls[window][info.entry.nr];
  }
}

// The signal to hand on to a thread that stopped for `status`, 0 for stops of the tracing itself.
int signal_to_deliver(int status) noexcept {
  const int signal = WSTOPSIG(status);
  const bool own = signal == kSyscallStop || signal == SIGTRAP || signal == SIGSTOP;
  return own ? 0 : signal;
}

int trace_until_exit(pid_t child, CallsByMark& calls) {
  uint32_t window = 0;
  for (;;) {
    int status = 0;
    const pid_t thread = ::waitpid(-1, &status, __WALL);
    if (thread < 0) {
      if (errno == EINTR) continue;
      return -1;
    }
    if (WIFEXITED(status) || WIFSIGNALED(status)) {
      if (thread != child) continue;
      return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }
    if (WSTOPSIG(status) == kSyscallStop) count_stop(thread, window, calls);
    ::ptrace(PTRACE_SYSCALL, thread, nullptr, signal_to_deliver(status));
  }
}

const char* name_of(uint64_t number) noexcept {
  switch (number) {
    case SYS_futex: return "futex";
    case SYS_write: return "write";
    case SYS_read: return "read";
    case SYS_mmap: return "mmap";
    case SYS_munmap: return "munmap";
    case SYS_madvise: return "madvise";
    case SYS_sendmsg: return "sendmsg";
    case SYS_recvmsg: return "recvmsg";
    case SYS_epoll_pwait: return "epoll_pwait";
    case SYS_sched_yield: return "sched_yield";
    default: return nullptr;
  }
}

}  // namespace

void mark(uint32_t number) noexcept { ::syscall(SYS_close, kFirstMark - static_cast<int>(number)); }

uint64_t TracedRun::total(uint32_t number) const {
  uint64_t sum = 0;
  if (const auto found = calls.find(number); found != calls.end()) {
    for (const auto& [call, count] : found->second) sum += count;
  }
  return sum;
}

std::string TracedRun::list(uint32_t number) const {
  std::string out;
  const auto found = calls.find(number);
  if (found == calls.end()) return "none";
  for (const auto& [call, count] : found->second) {
    const char* const name = name_of(call);
    if (!out.empty()) out += ", ";
    out += (name != nullptr ? std::string(name) : "call " + std::to_string(call)) + " " +
           std::to_string(count);
  }
  return out;
}

std::optional<TracedRun> run_traced(const std::function<int()>& body, unsigned seconds) {
  const pid_t child = ::fork();
  if (child < 0) return std::nullopt;
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::alarm(seconds);
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(kRefused);
    ::raise(SIGSTOP);
    ::_exit(body());
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFSTOPPED(status)) return std::nullopt;
  ::ptrace(PTRACE_SETOPTIONS, child, nullptr,
           PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL);
  ::ptrace(PTRACE_SYSCALL, child, nullptr, 0);
  TracedRun run;
  run.exit_code = trace_until_exit(child, run.calls);
  return run;
}

}  // namespace stagelink::test
