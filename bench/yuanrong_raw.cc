// yuanrong_raw SDK_FOLDER PLUGIN HOST PORT SIZE COUNT
//
// What a put and a get of the Yuanrong Datasystem cost without us: create, fill by one copy,
// publish; get as a read-only buffer. One process, one exclusive connection. Prints {"put_us":
// [...], "get_us": [...]}.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include "broker/sdk.h"

namespace {

using namespace stagelink::broker;
using Clock = std::chrono::steady_clock;

class NoListener final : public MappingListener {
 public:
  void mapped(void*, size_t, int, off_t) noexcept override {}
  void unmapped(void*, size_t) noexcept override {}
};

constexpr int kWarmUps = 3;

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

void check(const SdkStatus& status, const char* what) {
  if (status.ok()) return;
  fmt::print(stderr, "{}: code {}: {}\n", what, status.code, status.message);
  std::_Exit(1);
}

void put(SdkClient& client, const std::string& key, std::span<const std::byte> from) {
  SdkMemory memory;
  const SdkPutTerms terms{3, 0};  // NONE_L2_CACHE_EVICT, as ours.
  check(client.create(key, from.size(), terms, memory), "create");
  std::memcpy(memory.data, from.data(), from.size());
  check(client.publish(memory), "publish");
}

// The library path is read when a process starts.
void have_library_path(char** argv) {
  const std::string wanted = std::string(argv[1]) + "/lib";
  const char* now = std::getenv("LD_LIBRARY_PATH");
  if (now != nullptr && wanted == now) return;
  ::setenv("LD_LIBRARY_PATH", wanted.c_str(), 1);
  ::setenv("DATASYSTEM_MIN_LOG_LEVEL", "2", 1);
  ::setenv("DATASYSTEM_LOG_MONITOR_ENABLE", "false", 1);
  ::execv("/proc/self/exe", argv);
  std::_Exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  have_library_path(argv);
  void* const handle = ::dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    fmt::print(stderr, "{}\n", ::dlerror());
    return 1;
  }
  const auto* plugin = static_cast<const SdkPlugin*>(::dlsym(handle, "stagelink_sdk_plugin"));
  static NoListener listener;
  SdkOptions options;
  options.host = argv[3];
  options.port = std::atoi(argv[4]);
  options.connect_timeout_ms = 5000;
  options.request_timeout_ms = 5000;
  options.exclusive = true;
  const auto client = plugin->make(listener)->connect(options);
  check(client->init(), "init");
  const std::vector<std::byte> from(std::strtoull(argv[5], nullptr, 10), std::byte{7});
  const int count = std::atoi(argv[6]);
  std::string puts;
  std::string gets;
  // A process that has just started meets the worker's memory page by page.
  for (int i = -kWarmUps * count; i < count; ++i) {
    const std::string key = fmt::format("raw-{}-{}", ::getpid(), i + kWarmUps * count);
    const auto begin = Clock::now();
    put(*client, key, from);
    const double put_us = us_since(begin);
    std::vector<SdkMemory> found;
    const auto between = Clock::now();
    check(client->get({key}, 0, found), "get");
    const double get_us = us_since(between);
    if (found[0].size != from.size()) return 1;
    found.clear();
    check(client->erase({key}), "erase");
    if (i < 0) continue;
    puts += fmt::format("{}{:.2f}", i == 0 ? "" : ",", put_us);
    gets += fmt::format("{}{:.2f}", i == 0 ? "" : ",", get_us);
  }
  fmt::print("{{\"put_us\": [{}], \"get_us\": [{}]}}\n", puts, gets);
  std::fflush(stdout);
  std::_Exit(0);
}
