// stagelink-yuanrong-broker SOCKET SDK_FOLDER PLUGIN
//
// Holds the client library of the Yuanrong Datasystem for all processes of one user that use one
// worker. Started by the first of them with the listening socket as descriptor 3 and a pipe for its
// last words as descriptor 4; see docs/decisions/0007-yuanrong-broker.md.
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "broker/interpose.h"
#include "broker/mappings.h"
#include "broker/sdk.h"
#include "broker/server.h"
#include "store/yuanrong/channel/broker_lock.h"

namespace {

using stagelink::UniqueFd;
using stagelink::broker::Mappings;
using stagelink::broker::Sdk;
using stagelink::broker::SdkPlugin;

constexpr int kListenerFd = 3;
constexpr int kLastWordsFd = 4;
constexpr const char* kSecondLife = "STAGELINK_YUANRONG_BROKER_LIFE";
constexpr const char* kLogFolder = "STAGELINK_YUANRONG_BROKER_LOGS";

// What the starter reads: "ready", or why not.
void say(const std::string& words) {
  (void)!::write(kLastWordsFd, words.data(), words.size());
  ::close(kLastWordsFd);
}

[[noreturn]] void give_up(const std::string& words) {
  say(words);
  std::_Exit(1);
}

// The dynamic loader reads the library path once, when a process starts. So the broker sets it and
// becomes itself again, as nobody's child.
[[noreturn]] void start_again(char** argv) {
  const pid_t child = ::fork();
  if (child < 0) give_up(fmt::format("fork: {}", std::strerror(errno)));
  if (child > 0) std::_Exit(0);
  ::setsid();
  const std::string sdk = argv[2];
  ::setenv("LD_LIBRARY_PATH", (sdk + "/lib").c_str(), 1);
  ::setenv(kSecondLife, "2", 1);
  // Otherwise it writes a line for each operation into the home directory. It refuses /dev/shm.
  ::setenv("DATASYSTEM_MIN_LOG_LEVEL", "2", 0);
  ::setenv("DATASYSTEM_LOG_MONITOR_ENABLE", "false", 0);
  std::string logs = "/tmp/stagelink-yuanrong-XXXXXX";
  if (::mkdtemp(logs.data()) != nullptr) {
    ::setenv("DATASYSTEM_CLIENT_LOG_DIR", logs.c_str(), 0);
    ::setenv(kLogFolder, logs.c_str(), 1);
  }
  ::execv("/proc/self/exe", argv);
  give_up(fmt::format("exec: {}", std::strerror(errno)));
}

Sdk* load(const char* path, Mappings& mappings) {
  void* const handle = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) give_up(::dlerror());
  const auto* plugin = static_cast<const SdkPlugin*>(::dlsym(handle, "stagelink_sdk_plugin"));
  if (plugin == nullptr) give_up(::dlerror());
  if (plugin->version != stagelink::broker::kSdkVersion) {
    give_up(fmt::format("{} is of another version of stagelink", path));
  }
  return plugin->make(mappings);
}

void prepare_process() {
  ::unsetenv(kSecondLife);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGINT, SIG_IGN);  // It ends with its clients, not with the terminal of the first.
  ::signal(SIGHUP, SIG_IGN);
  // Secrets are in its memory.
  ::prctl(PR_SET_DUMPABLE, 0);
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  // Its starter may be bound to one processor.
  cpu_set_t all;
  std::memset(&all, 0xff, sizeof(all));
  (void)::sched_setaffinity(0, sizeof(all), &all);
  (void)!::chdir("/");
  // What the starter prints to is not ours to hold open.
  const int nowhere = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {0, 1, 2}) ::dup2(nowhere, fd);
  ::close(nowhere);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "{} is started by programs that use a Yuanrong store\n", argv[0]);
    return 2;
  }
  if (std::getenv(kSecondLife) == nullptr) start_again(argv);
  prepare_process();
  (void)::fcntl(kListenerFd, F_SETFD, FD_CLOEXEC);
  (void)::fcntl(kLastWordsFd, F_SETFD, FD_CLOEXEC);
  const char* const logs = std::getenv(kLogFolder);
  auto claimed =
      stagelink::store::yuanrong::claim_broker_files(argv[1], logs == nullptr ? "" : logs);
  if (!claimed.ok()) give_up(claimed.status().to_string());
  // Lives as long as the process: the library's threads may map at any time.
  static Mappings* const mappings = new Mappings;
  stagelink::broker::listen_to_mappings(mappings);
  Sdk* const sdk = load(argv[3], *mappings);
  static auto* const server = new stagelink::broker::Server(
      {UniqueFd(kListenerFd), argv[1], *std::move(claimed)}, *sdk, *mappings);
  say("ready");
  const stagelink::Status ended = server->run();
  if (logs != nullptr) {
    std::error_code error;
    std::filesystem::remove_all(logs, error);
  }
  // Without the destructors of the library, which other threads are in.
  std::_Exit(ended.ok() ? 0 : 1);
}
