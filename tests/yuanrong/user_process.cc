// A second process that uses a store, told what to do by lines of text.
#include <cstdlib>
#include <sstream>

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>

#include "base/unique_fd.h"
#include "integration/support/child_process.h"
#include "yuanrong/cluster.h"

namespace stagelink::test {
namespace {

// "open HOST PORT ETCD NETNS" (ETCD "-": none), "put KEY BYTES SEED", "get KEY WAIT_MS BYTES SEED",
// "event NAME", "up PART".
class User {
 public:
  std::string answer(const std::string& line) {
    std::istringstream in(line);
    std::string word;
    in >> word;
    if (word == "open") return open(in);
    if (word == "put") return put(in);
    if (word == "get") return get(in);
    if (word == "event") {
      in >> word;
      return fmt::format("{}", metric(*store_, "stagelink_yuanrong_events_total", word));
    }
    if (word == "up") {
      in >> word;
      return fmt::format("{}", metric(*store_, "stagelink_yuanrong_up", word));
    }
    return "unknown";
  }

 private:
  std::string open(std::istringstream& in) {
    StoreOptions options;
    std::string network;
    options.backend = StoreBackend::kYuanrong;
    in >> options.yuanrong.host >> options.yuanrong.port >> options.yuanrong.etcd_address >>
        network;
    if (options.yuanrong.etcd_address == "-") options.yuanrong.etcd_address.clear();
    if (!network.empty()) {
      const UniqueFd fd(::open(network.c_str(), O_RDONLY | O_CLOEXEC));
      if (::setns(fd.get(), CLONE_NEWNET) != 0) return "setns failed";
    }
    options.yuanrong.sdk_path = real_sdk();
    options.yuanrong.chunk_bytes = 16 << 20;
    options.yuanrong.connect_timeout = std::chrono::seconds(20);
    auto store = ObjectStore::open(options);
    if (store.ok()) store_ = *std::move(store);
    return std::string(reason_name(store.status().reason()));
  }
  std::string put(std::istringstream& in) {
    std::string key;
    size_t bytes = 0;
    unsigned seed = 0;
    in >> key >> bytes >> seed;
    const std::string value = pattern(bytes, seed);
    return std::string(
        reason_name(store_->put(key, std::as_bytes(std::span(value))).status().reason()));
  }
  std::string get(std::istringstream& in) {
    std::string key;
    int64_t wait_ms = 0;
    size_t bytes = 0;
    unsigned seed = 0;
    in >> key >> wait_ms >> bytes >> seed;
    auto view = store_->get(key, std::chrono::milliseconds(wait_ms));
    if (!view.ok()) return std::string(reason_name(view.status().reason()));
    const std::string want = pattern(bytes, seed);
    const std::string_view got(reinterpret_cast<const char*>(view->bytes().data()),
                               view->bytes().size());
    return got == want ? "ok" : "other bytes";
  }
  std::unique_ptr<ObjectStore> store_;
};

int run_user(Channel& parent) {
  User user;
  for (;;) {
    const auto line = parent.receive_text(std::chrono::seconds(60));
    if (!line) return 0;
    if (!parent.send(user.answer(*line))) return 0;
  }
}

const RoleRegistration kUserRole("yuanrong-user", &run_user);

}  // namespace
}  // namespace stagelink::test
