#include "unit/cli/replay/halves/command.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace stagelink::cli::replay {
namespace {

constexpr auto kLongest = std::chrono::seconds(90);

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

pid_t parent_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string word; file >> word;) {
    pid_t parent = -1;
    if (word == "PPid:" && file >> parent) return parent;
  }
  return -1;
}

bool is_below(pid_t pid, pid_t ancestor) {
  while (pid > 1 && pid != ancestor) pid = parent_of(pid);
  return pid == ancestor;
}

}  // namespace

Command::Command(const Place& place, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), STAGELINK_COMMAND);
  if (!place.network.empty()) {
    const std::vector<std::string> inside = {"ip", "netns", "exec", place.network};
    arguments.insert(arguments.begin(), inside.begin(), inside.end());
  }
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ != 0) return;
  ::setenv("STAGELINK_RUNTIME_DIR", place.runtime_dir.c_str(), 1);
  for (const auto& [fd, name] : {std::pair(1, "out"), std::pair(2, "err")}) {
    ::dup2(::open((dir_.path() + "/" + name).c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600), fd);
  }
  ::execvp(argv[0], argv.data());
  ::_exit(127);
}

Command::~Command() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

int Command::wait() {
  const Deadline deadline = Deadline::in(kLongest);
  int status = 0;
  while (::waitpid(pid_, &status, WNOHANG) == 0) {
    if (deadline.passed()) return kHangs;  // The destructor kills it.
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

std::string Command::out() const { return read_file(dir_.path() + "/out"); }
std::string Command::err() const { return read_file(dir_.path() + "/err"); }

pid_t descendant(pid_t parent, const std::string& name) {
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", gone)) {
    const std::string text = entry.path().filename().string();
    if (!std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; })) continue;
    const auto pid = static_cast<pid_t>(std::stol(text));
    if (pid == parent || read_file("/proc/" + text + "/cmdline").find(name) == std::string::npos) {
      continue;
    }
    if (is_below(pid, parent)) return pid;
  }
  return -1;
}

std::string small_trace(uint32_t requests, uint32_t gap_ms) {
  std::string text;
  for (uint32_t i = 0; i < requests; ++i) {
    const uint32_t tokens = 600 + i * 331 % 900;
    std::string ids = "0";
    for (uint32_t id = 1; id * 512 < tokens; ++id) ids += "," + std::to_string(10 * i + id);
    text += "{\"timestamp\":" + std::to_string(i * gap_ms) +
            ",\"input_length\":" + std::to_string(tokens) + ",\"output_length\":1,\"hash_ids\":[" +
            ids + "]}\n";
  }
  return text;
}

uint16_t free_port() {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), bytes);
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
  return ntohs(address.sin_port);
}

}  // namespace stagelink::cli::replay
