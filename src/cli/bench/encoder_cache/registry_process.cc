#include "cli/bench/encoder_cache/registry_process.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/deadline.h"
#include "transport/blocking_frames.h"

namespace stagelink::cli::bench {

namespace {

constexpr auto kPatience = std::chrono::seconds(20);

Result<pid_t> spawn_registry(const std::string& exe, int output) {
  std::array<std::string, 5> words = {exe, "registry", "--port", "0", "--json"};
  std::array<char*, words.size() + 1> pointers{};
  for (size_t i = 0; i < words.size(); ++i) pointers[i] = words[i].data();
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, exe.c_str(), &actions, nullptr, pointers.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error == 0) return pid;
  return Status(Reason::kNotFound, fmt::format("{}: {}", exe, std::strerror(error)));
}

Result<std::string> first_line(int fd) {
  const Deadline deadline = Deadline::in(kPatience);
  std::string line;
  while (!line.ends_with('\n')) {
    pollfd at{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&at, 1, deadline.left_ms());
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return Status(Reason::kTimedOut, "the registry does not say where it listens");
    char bytes[512];
    const ssize_t got = ::read(fd, bytes, sizeof bytes);
    if (got <= 0) return Status(Reason::kSystem, "the registry has ended: " + line);
    line.append(bytes, static_cast<size_t>(got));
  }
  return line;
}

// The number behind `name` in a file of /proc.
uint64_t proc_number(pid_t pid, const char* file, std::string_view name) {
  std::ifstream in(fmt::format("/proc/{}/{}", pid, file));
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(name)) return std::strtoull(line.c_str() + name.size(), nullptr, 10);
  }
  return 0;
}

}  // namespace

Result<std::unique_ptr<RegistryProcess>> RegistryProcess::start(const std::string& exe) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return Status(Reason::kLimit, fmt::format("pipe: {}", std::strerror(errno)));
  }
  const UniqueFd output(ends[0]);
  UniqueFd theirs(ends[1]);
  SL_ASSIGN(const pid_t pid, spawn_registry(exe, theirs.get()));
  std::unique_ptr<RegistryProcess> process(new RegistryProcess(pid));
  theirs.reset();
  SL_ASSIGN(const std::string line, first_line(output.get()));
  constexpr std::string_view kBefore = "{\"url\":\"http://";
  const size_t end = line.find('"', kBefore.size());
  if (!line.starts_with(kBefore) || end == std::string::npos) {
    return Status(Reason::kSystem, "the registry says: " + line);
  }
  SL_ASSIGN(process->endpoint_,
            parse_endpoint(std::string_view(line).substr(kBefore.size(), end - kBefore.size())));
  return process;
}

RegistryProcess::~RegistryProcess() {
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
}

uint64_t RegistryProcess::resident_bytes() const {
  return proc_number(pid_, "smaps_rollup", "Pss:") << 10;
}

int RegistryProcess::threads() const {
  return static_cast<int>(proc_number(pid_, "status", "Threads:"));
}

Result<PlainConnection> PlainConnection::open(const Endpoint& server) {
  SL_ASSIGN(UniqueFd fd, transport::connect_tcp(server.host, server.port, Deadline::in(kPatience)));
  return PlainConnection(std::move(fd));
}

Status PlainConnection::send(std::string_view bytes) {
  const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(bytes.size())) return {};
  return Status(Reason::kConnectionCut, "the registry takes no more requests");
}

Result<bool> PlainConnection::receive() {
  char bytes[4096];
  const ssize_t count = ::recv(fd_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (count <= 0) return Status(Reason::kConnectionCut, "the registry has closed a connection");
  got_.append(bytes, static_cast<size_t>(count));
  constexpr std::string_view kLength = "Content-Length: ";
  const size_t head = got_.find("\r\n\r\n");
  const size_t length = got_.find(kLength);
  if (head == std::string::npos || length > head) return false;
  size_t body = 0;
  std::from_chars(got_.data() + length + kLength.size(), got_.data() + head, body);
  if (got_.size() < head + 4 + body) return false;
  succeeded_ = got_.starts_with("HTTP/1.1 200");
  got_.clear();
  return true;
}

}  // namespace stagelink::cli::bench
