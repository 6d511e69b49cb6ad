#include "yuanrong/cluster.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace stagelink::test {
namespace {

namespace fs = std::filesystem;

// Two next to each other, as etcd wants them.
uint16_t free_ports() {
  for (;;) {
    uint16_t port = 0;
    for (int i = 0; i < 2; ++i) {
      const UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      address.sin_port = htons(static_cast<uint16_t>(port == 0 ? 0 : port + 1));
      socklen_t size = sizeof(address);
      if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) break;
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
      if (i == 1) return port;
      port = ntohs(address.sin_port);
    }
  }
}

}  // namespace

std::string real_sdk() {
  if (const char* named = std::getenv("STAGELINK_YUANRONG_SDK"); named != nullptr) return named;
  std::error_code error;
  for (const char* venv : {".venv", "build/yuanrong-venv"}) {
    for (const auto& entry :
         fs::directory_iterator(fs::path(STAGELINK_SOURCE_DIR) / venv / "lib", error)) {
      const fs::path sdk = entry.path() / "site-packages/yr/datasystem";
      if (fs::exists(sdk / "lib/libdatasystem.so", error)) return sdk.string();
    }
  }
  return "";
}

std::string servers_missing(bool etcd) {
  if (real_sdk().empty()) {
    return "openyuanrong-datasystem is not installed (pip install openyuanrong-datasystem==0.8.1)";
  }
  if (etcd && std::system("command -v etcd >/dev/null 2>&1") != 0) return "etcd is not installed";
  return "";
}

std::unique_ptr<Cluster> Cluster::start(Options options) {
  static std::atomic<int> count{0};
  auto cluster = std::make_unique<Cluster>();
  if (options.port == Options().port) options.port = free_ports();
  if (options.etcd_port == Options().etcd_port) options.etcd_port = free_ports();
  if (options.folder.empty()) {
    options.folder = fmt::format("/tmp/stagelink-test-yuanrong-{}-{}", ::getpid(), ++count);
  }
  options.sdk = real_sdk();
  options.timeout = std::chrono::seconds(90);
  cluster->options_ = options;
  auto servers = store::yuanrong::start_cluster(options, nullptr);
  EXPECT_TRUE(servers.ok()) << servers.status().to_string();
  if (!servers.ok()) return nullptr;
  cluster->servers_ = *servers;
  return cluster;
}

Cluster::~Cluster() {
  if (!servers_.empty()) {
    // Nothing of theirs is wanted any more, and their goodbye takes seconds.
    for (const auto& server : servers_) kill(server.name);
    (void)store::yuanrong::stop_cluster(options_.folder, std::chrono::seconds(5));
  }
}

StoreOptions Cluster::store_options() const {
  StoreOptions options;
  options.backend = StoreBackend::kYuanrong;
  options.yuanrong.host = options_.host;
  options.yuanrong.port = options_.port;
  options.yuanrong.sdk_path = options_.sdk;
  options.yuanrong.etcd_address = options_.join.empty()
                                      ? fmt::format("{}:{}", options_.host, options_.etcd_port)
                                      : options_.join;
  options.yuanrong.chunk_bytes = 16 << 20;
  options.yuanrong.connect_timeout = std::chrono::seconds(20);
  return options;
}

std::unique_ptr<ObjectStore> Cluster::open() const {
  auto store = ObjectStore::open(store_options());
  EXPECT_TRUE(store.ok()) << store.status().to_string();
  return store.ok() ? *std::move(store) : nullptr;
}

void Cluster::kill(const std::string& name) {
  for (const auto& server : servers_) {
    if (server.name == name) ::kill(server.id.pid, SIGKILL);
  }
}

void Cluster::restart_worker() {
  std::error_code error;
  fs::remove(options_.folder + "/ready", error);
  auto worker = store::yuanrong::start_worker_again(options_);
  ASSERT_TRUE(worker.ok()) << worker.status().to_string();
  std::erase_if(servers_, [](const auto& server) { return server.name == "worker"; });
  servers_.push_back(*worker);
}

double metric(const ObjectStore& store, const std::string& name, const std::string& label) {
  const std::string text = store.metrics_text();
  for (size_t at = text.find("\n" + name + "{"); at != text.npos;
       at = text.find("\n" + name + "{", at + 1)) {
    const std::string line = text.substr(at + 1, text.find('\n', at + 1) - at - 1);
    if (line.find(label) == line.npos) continue;
    return std::strtod(line.c_str() + line.rfind(' '), nullptr);
  }
  return -1;
}

std::string pattern(size_t bytes, unsigned seed) {
  std::string out(bytes, static_cast<char>(seed));
  for (size_t at = 0; at + 8 <= bytes; at += 4096) {
    const uint64_t word = at * 0x9e3779b97f4a7c15ULL + seed;
    std::memcpy(out.data() + at, &word, sizeof(word));
  }
  return out;
}

bool put_text(ObjectStore& store, const std::string& key, const std::string& value) {
  const auto put = store.put(key, std::as_bytes(std::span(value)));
  EXPECT_TRUE(put.ok()) << put.status().to_string();
  return put.ok();
}

}  // namespace stagelink::test
