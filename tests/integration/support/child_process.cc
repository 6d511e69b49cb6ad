#include "integration/support/child_process.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string_view>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "integration/support/eventually.h"

namespace stagelink::test {
namespace {

constexpr unsigned kChildSeconds = 60;

std::map<std::string_view, Role>& roles() {
  static std::map<std::string_view, Role> known;
  return known;
}

int exit_of(int status) { return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status); }

}  // namespace

RoleRegistration::RoleRegistration(const char* name, Role role) { roles().emplace(name, role); }

int run_role(int argc, char** argv) {
  if (argc != 5 || std::string_view(argv[3]) != "--channel" || !roles().contains(argv[2])) {
    std::fprintf(stderr, "usage: %s --role NAME --channel FD\n", argv[0]);
    return 64;
  }
  Channel parent{UniqueFd(std::atoi(argv[4]))};
  return roles().at(argv[2])(parent);
}

ChildProcess::ChildProcess(const char* role) : channel_(UniqueFd()) {
  auto [ours, theirs] = Channel::pair();
  const std::string fd = std::to_string(theirs.get());
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(65);
    ::alarm(kChildSeconds);
    ::fcntl(theirs.get(), F_SETFD, 0);
    ::execl("/proc/self/exe", "integration_tests", "--role", role, "--channel", fd.c_str(),
            static_cast<char*>(nullptr));
    ::_exit(66);
  }
  channel_ = std::move(ours);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : channel_(std::move(other.channel_)), pid_(std::exchange(other.pid_, -1)) {}

ChildProcess::~ChildProcess() {
  channel_.close();
  if (pid_ > 0) (void)wait_exit();
}

void ChildProcess::kill_hard() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

void ChildProcess::stop() {
  ::kill(pid_, SIGSTOP);
  int status = 0;
  while (::waitpid(pid_, &status, WUNTRACED) < 0 && errno == EINTR) {
  }
  if (!WIFSTOPPED(status)) throw std::runtime_error("the child ended instead of stopping");
}

void ChildProcess::resume() { ::kill(pid_, SIGCONT); }

int ChildProcess::wait_exit(Duration timeout) {
  int status = 0;
  ::kill(pid_, SIGCONT);
  const bool ended = eventually([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; }, timeout);
  if (!ended) {
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
  }
  pid_ = -1;
  return exit_of(status);
}

}  // namespace stagelink::test
