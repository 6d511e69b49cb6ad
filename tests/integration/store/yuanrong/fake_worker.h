#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/unique_fd.h"
#include "stagelink/object_store.h"

namespace stagelink::test {

// A worker of the datasystem that is none: a port that listens, and the plug-in of
// tests/fake_datasystem, which the broker loads in place of the real library.
class FakeWorker {
 public:
  FakeWorker()
      : folder_(fmt::format("/tmp/stagelink-fake-{}-{}", ::getpid(), ++counter())),
        socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    std::filesystem::create_directories(folder_);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    (void)::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
    (void)::listen(socket_.get(), 1024);  // Nobody accepts.
    (void)::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    ::setenv("STAGELINK_YUANRONG_PLUGIN", STAGELINK_FAKE_DATASYSTEM, 1);
  }
  ~FakeWorker() {
    std::error_code error;
    std::filesystem::remove_all(folder_, error);
  }

  StoreOptions options() const {
    StoreOptions options;
    options.backend = StoreBackend::kYuanrong;
    options.yuanrong.port = port_;
    options.yuanrong.tenant_id = folder_;
    options.yuanrong.chunk_bytes = 16 << 20;
    options.yuanrong.health_interval = std::chrono::milliseconds(50);
    options.yuanrong.connect_timeout = std::chrono::seconds(20);
    options.yuanrong.request_timeout = std::chrono::seconds(20);
    return options;
  }
  std::unique_ptr<ObjectStore> open() const {
    auto store = ObjectStore::open(options());
    EXPECT_TRUE(store.ok()) << store.status().to_string();
    return store.ok() ? *std::move(store) : nullptr;
  }
  void tell(const std::string& name, const std::string& text = "") {
    std::ofstream(folder_ + "/" + name) << text << '\n';
  }
  void untell(const std::string& name) { std::filesystem::remove(folder_ + "/" + name); }
  bool somebody_waits() const { return std::filesystem::exists(folder_ + "/waiting"); }
  // Nobody listens any more, and who was connected is told so.
  void die() { socket_.reset(); }

 private:
  static int& counter() {
    static int count = 0;
    return count;
  }

  const std::string folder_;
  UniqueFd socket_;
  uint16_t port_ = 0;
};

// The number behind the first sample whose line holds `what`; -1: there is none.
inline double sample(const ObjectStore& store, const std::string& what) {
  const std::string text = store.metrics_text();
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    if (line.empty() || line.front() == '#' || line.find(what) == line.npos) continue;
    return std::strtod(line.c_str() + line.rfind(' '), nullptr);
  }
  return -1;
}

inline double event_count(const ObjectStore& store, const std::string& name) {
  return sample(store, "event=\"" + name + "\"");
}

inline pid_t broker_pid(const ObjectStore& store) {
  return static_cast<pid_t>(sample(store, "stagelink_yuanrong_broker_pid{"));
}

// Also one that nobody has reaped yet.
inline bool ended(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  const size_t name = line.rfind(')');
  return name == line.npos || line.compare(name + 2, 1, "Z") == 0;
}

}  // namespace stagelink::test
