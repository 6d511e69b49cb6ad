#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/commands.h"

// The proxy is Python: this command looks for a Python that has the package, and becomes it.
namespace stagelink::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kProbe =
    "import importlib.util, sys\n"
    "sys.exit(importlib.util.find_spec('stagelink.proxy') is None)";

fs::path own_folder() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).parent_path();
}

// The Pythons to ask, best first: the one that was named, or that of the same environment as this
// command and the one of the search path.
std::vector<std::string> candidates(const fs::path& folder) {
  const char* named = std::getenv("STAGELINK_PYTHON");
  if (named != nullptr && *named != '\0') return {named};
  std::vector<std::string> found;
  std::error_code error;
  if (fs::exists(folder / "python3", error)) found.push_back((folder / "python3").string());
  found.emplace_back("python3");
  return found;
}

// In a build folder the package lies next to the command.
void add_package_of_build(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder / "python" / "stagelink" / "proxy", error)) return;
  std::string path = (folder / "python").string();
  const char* before = std::getenv("PYTHONPATH");
  if (before != nullptr && *before != '\0') path += std::string(":") + before;
  ::setenv("PYTHONPATH", path.c_str(), 1);
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> found;
  for (std::string& word : words) found.push_back(word.data());
  found.push_back(nullptr);
  return found;
}

// True if this Python can import the proxy's package.
bool has_package(const std::string& python) {
  std::vector<std::string> words = {python, "-c", kProbe};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    ::posix_spawn_file_actions_addopen(&actions, stream, "/dev/null", O_WRONLY, 0);
  }
  pid_t pid = 0;
  const int error =
      ::posix_spawnp(&pid, python.c_str(), &actions, nullptr, pointers(words).data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return false;
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return false;
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Returns only if there is no such Python.
int become_proxy(const std::vector<std::string>& arguments) {
  const fs::path folder = own_folder();
  add_package_of_build(folder);
  std::string tried;
  for (const std::string& python : candidates(folder)) {
    if (!has_package(python)) {
      tried += (tried.empty() ? "" : ", ") + python;
      continue;
    }
    std::vector<std::string> words = {python, "-m", "stagelink.proxy"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    ::execvp(python.c_str(), pointers(words).data());
    std::fprintf(stderr, "error: %s: %s\n", python.c_str(), std::strerror(errno));
    return kExitFailed;
  }
  std::fprintf(stderr,
               "error: the proxy is part of the Python package stagelink, which is not in: %s\n"
               "Install it: pip install '.[proxy]' in a clone. If it is in another Python, name "
               "that in STAGELINK_PYTHON.\n",
               tried.c_str());
  return kExitFailed;
}

}  // namespace

void add_proxy_command(CLI::App& app, int& exit_code) {
  CLI::App* const command =
      app.add_subcommand("proxy", "Send requests to a prefill and then to a decode server");
  // Everything that follows is for the proxy's own command line, --help too.
  command->set_help_flag();
  command->prefix_command();
  command->callback([command, &exit_code] { exit_code = become_proxy(command->remaining()); });
}

}  // namespace stagelink::cli
