#include "store/yuanrong/servers/server_process.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <deque>
#include <fstream>
#include <span>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/text.h"
#include "base/unique_fd.h"

extern char** environ;

namespace stagelink::store::yuanrong {
namespace {

using namespace std::chrono_literals;

constexpr auto kEndInterval = 20ms;

template <typename T>
bool parse_number(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> out;
  for (std::string& word : words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

// In the child of the child: says who it is, becomes the server, or says why not.
[[noreturn]] void become(const char* output, char** argv, char** environment, int pipe) noexcept {
  const ProcessId self = ProcessId::self();
  (void)!::write(pipe, &self, sizeof(self));
  const int in = ::open("/dev/null", O_RDONLY);
  const int out = ::open(output, O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::dup2(in, 0);
  ::dup2(out, 1);
  ::dup2(out, 2);
  cpu_set_t all;  // Who starts it may be bound to one processor.
  std::memset(&all, 0xff, sizeof(all));
  (void)::sched_setaffinity(0, sizeof(all), &all);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(argv[0], argv, environment);
  const int error = errno;
  (void)!::write(pipe, &error, sizeof(error));
  ::_exit(127);
}

// Until the end of the pipe, which a successful exec is.
size_t read_all(int pipe, std::span<std::byte> into) noexcept {
  size_t bytes = 0;
  while (bytes < into.size()) {
    const ssize_t got = ::read(pipe, into.data() + bytes, into.size() - bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    bytes += static_cast<size_t>(got);
  }
  return bytes;
}

}  // namespace

bool ServerProcess::alive() const noexcept { return liveness_of(id) == Liveness::kAlive; }

std::string ServerProcess::line() const {
  return fmt::format("{} {} {}", name, id.pid, id.start_time);
}

std::optional<ServerProcess> ServerProcess::parse(std::string_view line) {
  const size_t first = line.find(' ');
  const size_t second = line.find(' ', first + 1);
  if (first == line.npos || second == line.npos || first == 0) return std::nullopt;
  ServerProcess server;
  server.name = line.substr(0, first);
  server.id.pid_namespace = ProcessId::self().pid_namespace;
  if (!parse_number(line.substr(first + 1, second - first - 1), server.id.pid) ||
      !parse_number(line.substr(second + 1), server.id.start_time) || server.id.pid <= 1) {
    return std::nullopt;
  }
  return server;
}

// Two forks, so that the server is nobody's child.
Result<ServerProcess> start_server(const ServerCommand& command) {
  std::vector<std::string> words = command.words;
  std::vector<std::string> variables = command.environment;
  for (char** entry = environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);
  std::vector<char*> argv = pointers_to(words);
  std::vector<char*> environment = pointers_to(variables);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return Status(Reason::kSystem, fmt::format("pipe: {}", std::strerror(errno)));
  }
  const UniqueFd hears(ends[0]);
  UniqueFd says(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    ::setsid();
    const pid_t server = ::fork();
    if (server != 0) ::_exit(server < 0 ? 1 : 0);
    become(command.output.c_str(), argv.data(), environment.data(), says.get());
  }
  says.reset();
  if (child < 0) return Status(Reason::kSystem, fmt::format("fork: {}", std::strerror(errno)));
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  std::array<std::byte, sizeof(ProcessId) + sizeof(int)> told{};
  const size_t bytes = read_all(hears.get(), told);
  ServerProcess server{command.name, {}};
  if (bytes == sizeof(ProcessId)) {
    std::memcpy(&server.id, told.data(), sizeof(server.id));
    return server;
  }
  int error = EAGAIN;
  if (bytes == told.size()) std::memcpy(&error, told.data() + sizeof(ProcessId), sizeof(error));
  return Status(error == ENOENT ? Reason::kNotFound : Reason::kSystem,
                fmt::format("starting {}: {}", command.words.front(), std::strerror(error)));
}

Status stop_server(const ServerProcess& server, Duration patience) {
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, server.id.pid, 0)));
  // The descriptor is of whoever has the pid; only then is it checked who that is.
  if (!process || !server.alive()) return {};
  const auto tell = [&](int signal) {
    return ::syscall(SYS_pidfd_send_signal, process.get(), signal, nullptr, 0) == 0;
  };
  if (!tell(SIGTERM) && errno != ESRCH) {
    return Status(Reason::kPermission,
                  fmt::format("{}, pid {}: {}", server.name, server.id.pid, std::strerror(errno)));
  }
  for (const int last : {SIGKILL, 0}) {
    const Deadline end = Deadline::in(patience);
    while (server.alive() && !end.passed()) std::this_thread::sleep_for(kEndInterval);
    if (!server.alive()) return {};
    if (last != 0) (void)tell(last);
  }
  return Status(Reason::kTimedOut,
                fmt::format("{}, pid {}: does not end", server.name, server.id.pid));
}

std::string last_lines(const std::string& path, size_t count) {
  std::ifstream file(path);
  std::deque<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(to_plain_text(line, 400));
    if (lines.size() > count) lines.pop_front();
  }
  return fmt::format("{}", fmt::join(lines, "; "));
}

}  // namespace stagelink::store::yuanrong
