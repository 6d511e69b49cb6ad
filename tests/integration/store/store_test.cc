#include "integration/store/store_test.h"

#include <algorithm>
#include <cinttypes>
#include <filesystem>
#include <thread>

namespace stagelink::test {
namespace {

uint64_t seed_from_environment() {
  const char* const text = std::getenv("STAGELINK_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 0) : random_u64() >> 32;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (c == ' ') {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  return words;
}

// A store process's own end.
class StoreRole {
 public:
  explicit StoreRole(std::unique_ptr<ObjectStore> store) noexcept : store_(std::move(store)) {}

  std::string obey(const std::vector<std::string>& words) {
    const std::string& verb = words[0];
    const auto number = [&words](size_t at) {
      return std::strtoull(words[at].c_str(), nullptr, 0);
    };
    if (verb == "put") {
      const auto bytes = filled(number(2), static_cast<int>(number(3)));
      return shown(store_->put(words[1], bytes).status());
    }
    if (verb == "get") return get(words[1], std::chrono::milliseconds(number(2)));
    if (verb == "hold") {
      auto view = store_->get(words[1]);
      if (!view.ok()) return shown(view.status());
      views_.push_back(*std::move(view));
      return "ok";
    }
    if (verb == "drop") return views_.clear(), "ok";
    if (verb == "begin") {
      auto writer = store_->create(words[1], number(2));
      if (!writer.ok()) return shown(writer.status());
      writer_.emplace(*std::move(writer));
      return "ok";
    }
    if (verb == "seal") return shown(writer_->seal());
    if (verb == "erase") return shown(store_->erase(words[1]));
    if (verb == "close") return shown(store_->close());
    return "no such command: " + verb;
  }

 private:
  static std::string shown(const Status& status) {
    return std::string(reason_name(status.reason()));
  }

  // "ok SIZE VALUE", if all bytes are equal.
  std::string get(const std::string& key, Duration timeout) {
    auto view = store_->get(key, timeout);
    if (!view.ok()) return shown(view.status());
    const auto bytes = view->bytes();
    const int value = bytes.empty() ? 0 : static_cast<int>(bytes[0]);
    if (!all_are(bytes, value)) return "torn";
    return "ok " + std::to_string(bytes.size()) + " " + std::to_string(value);
  }

  std::unique_ptr<ObjectStore> store_;
  std::vector<ObjectView> views_;
  std::optional<ObjectWriter> writer_;
};

int store_role(Channel& parent) {
  const auto text = parent.receive_text();
  if (!text) return 1;
  const auto words = words_of(*text);
  StoreOptions options;
  options.arena.directory = words.at(0);
  options.arena.name = words.at(1);
  options.arena.capacity = std::stoull(words.at(2));
  options.arena.max_objects = static_cast<uint32_t>(std::stoul(words.at(3)));
  options.eviction = words.at(4) == "evict" ? EvictionMode::kEvict : EvictionMode::kNone;
  auto store = ObjectStore::open(options);
  if (!parent.send(store.ok() ? "ok" : store.status().to_string()) || !store.ok()) return 1;
  StoreRole role(*std::move(store));
  while (const auto command = parent.receive_text(std::chrono::seconds(60))) {
    if (!parent.send(role.obey(words_of(*command)))) break;
  }
  return 0;
}

const RoleRegistration kStoreRole("store", store_role);

}  // namespace

StoreTest::StoreTest() : seed_(seed_from_environment()) {
  if (kSanitized) std::thread([] {}).join();  // A sanitizer's own thread comes with the first one.
  std::string name = "/dev/shm/sl-test-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp: " + name);
  folder_ = name;
  options_.arena.directory = folder_;
  options_.arena.name = "test";
  options_.arena.capacity = 8 << 20;
  options_.arena.max_objects = 256;
}

StoreTest::~StoreTest() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void StoreTest::SetUp() {
  std::printf("STAGELINK_SEED=%" PRIu64 "\n", seed_);
  gauges_.emplace(folder_);
}

void StoreTest::TearDown() { EXPECT_EQ("", gauges_->difference()); }

std::vector<std::string> StoreTest::files() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

std::vector<std::byte> filled(uint64_t size, int value) {
  return std::vector<std::byte>(size, static_cast<std::byte>(value));
}

bool all_are(std::span<const std::byte> bytes, int value) {
  if (bytes.empty()) return true;
  return bytes[0] == static_cast<std::byte>(value) &&
         std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

StoreProcess::StoreProcess(const StoreOptions& options) : child_("store") {
  const ArenaOptions& arena = options.arena;
  const std::string text = arena.directory + " " + arena.name + " " +
                           std::to_string(arena.capacity) + " " +
                           std::to_string(arena.max_objects) +
                           (options.eviction == EvictionMode::kEvict ? " evict" : " none");
  if (const std::string opened = ask(text); opened != "ok") throw std::runtime_error(opened);
}

std::string StoreProcess::ask(const std::string& command) {
  tell(command);
  return answer();
}

void StoreProcess::tell(const std::string& command) {
  if (!child_.channel().send(command)) throw std::runtime_error("the store process has gone");
}

std::string StoreProcess::answer(Duration timeout) {
  return child_.channel().receive_text(timeout).value_or("gone");
}

}  // namespace stagelink::test
