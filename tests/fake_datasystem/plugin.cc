// A datasystem inside the broker: the same plug-in as the real one, over one memfd. It obeys files
// in the folder that the client names as its tenant:
//
//   stall        calls wait for as long as it is there
//   unhealthy    the health check says no
//   heap         memory that cannot be handed over
//   runtime      what is not there is answered with code 5
//   flip         reads show a flipped bit in the first byte: of the keys in it, one a line, or
//                of all if it is empty
//   drop         the names of keys in it, one a line, are not there
//   crowded      there is no exclusive connection left
//   full         creating answers "out of memory"
//   wants        the secret key in it is the right one
//   silent       connecting waits for as long as it is there
//   stuck        a connection does not end for as long as it is there
//
// and writes "waiting" there when a get begins to wait.
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include <sys/mman.h>
#include <unistd.h>

#include "broker/sdk.h"

namespace stagelink::broker {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr size_t kArenaBytes = size_t{96} << 20;
constexpr uint32_t kNotFoundCode = 3;
constexpr uint32_t kRuntimeCode = 5;
constexpr uint32_t kMemoryCode = 6;
constexpr uint32_t kNotAuthorizedCode = 9;
constexpr uint32_t kCrowdedCode = 13;

// First fit, in steps of 64 bytes behind a head of 64, as the real one's addresses are.
class Arena {
 public:
  explicit Arena(MappingListener& listener) {
    const int fd = ::memfd_create("fake-datasystem", MFD_CLOEXEC);
    if (::ftruncate(fd, kArenaBytes) != 0) std::abort();
    void* at = ::mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) std::abort();
    base_ = static_cast<std::byte*>(at);
    listener.mapped(at, kArenaBytes, fd, 0);
    ::close(fd);
  }
  std::shared_ptr<std::byte> take(uint64_t bytes) {
    const uint64_t want = (bytes + 127) / 64 * 64;
    const std::lock_guard lock(mutex_);
    uint64_t at = 0;
    for (const auto& [begin, size] : taken_) {
      if (begin - at >= want) break;
      at = begin + size;
    }
    if (kArenaBytes - at < want) return nullptr;
    taken_[at] = want;
    return {base_ + at + 64, [this, at](std::byte*) {
              const std::lock_guard release(mutex_);
              taken_.erase(at);
            }};
  }

 private:
  std::byte* base_ = nullptr;
  std::mutex mutex_;
  std::map<uint64_t, uint64_t> taken_;
};

struct Value {
  std::shared_ptr<std::byte> memory;
  uint64_t size = 0;
  Clock::time_point expires = Clock::time_point::max();
};

struct World {
  explicit World(MappingListener& listener) : arena(listener) {}
  Arena arena;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, Value> values;
};

// What create() gives, until it is published.
struct Draft {
  std::string key;
  Value value;
};

class FakeClient final : public SdkClient {
 public:
  FakeClient(World& world, const SdkOptions& options)
      : world_(world),
        folder_(options.tenant_id),
        secret_key_(options.secret_key),
        exclusive_(options.exclusive) {}

  ~FakeClient() override { stall("stuck"); }

  SdkStatus init() override {
    stall("silent");
    const std::set<std::string> wanted = lines("wants");
    if (!wanted.empty() && !wanted.contains(secret_key_)) return {kNotAuthorizedCode, "refused"};
    return {};
  }

  SdkStatus set(const std::string& key, std::span<const std::byte> value,
                const SdkPutTerms& terms) override {
    SdkMemory memory;
    SdkStatus status = create(key, value.size(), terms, memory);
    if (!status.ok()) return status;
    std::memcpy(memory.data, value.data(), value.size());
    return publish(memory);
  }

  SdkStatus create(const std::string& key, uint64_t size, const SdkPutTerms& terms,
                   SdkMemory& out) override {
    stall("stall");
    auto draft = std::make_shared<Draft>();
    draft->key = key;
    draft->value.memory = has("full") ? nullptr : memory(size);
    if (draft->value.memory == nullptr) return {kMemoryCode, "full"};
    draft->value.size = size;
    if (terms.ttl_s > 0) draft->value.expires = Clock::now() + std::chrono::seconds(terms.ttl_s);
    out = {draft, draft->value.memory.get(), size};
    return {};
  }

  SdkStatus publish(const SdkMemory& memory) override {
    stall("stall");
    const auto draft = std::static_pointer_cast<Draft>(memory.hold);
    const std::lock_guard lock(world_.mutex);
    world_.values[draft->key] = draft->value;
    world_.changed.notify_all();
    return {};
  }

  // Half the time that is asked for: the real one is too early, too.
  SdkStatus get(const std::vector<std::string>& keys, int32_t wait_ms,
                std::vector<SdkMemory>& out) override {
    stall("stall");
    if (exclusive_ && has("crowded")) return {kCrowdedCode, "too many"};
    if (wait_ms > 0) std::ofstream(folder_ + "/waiting") << "yes";
    const auto end = Clock::now() + std::chrono::milliseconds(wait_ms / 2);
    const std::set<std::string> dropped = lines("drop");
    std::unique_lock lock(world_.mutex);
    for (;;) {
      out.assign(keys.size(), {});
      size_t found = 0;
      for (size_t i = 0; i < keys.size(); ++i) {
        const auto at = world_.values.find(keys[i]);
        if (at == world_.values.end() || at->second.expires <= Clock::now()) continue;
        if (dropped.contains(keys[i])) continue;
        out[i] = shown(keys[i], at->second);
        ++found;
      }
      if (found == keys.size()) return {};
      if (world_.changed.wait_until(lock, end) != std::cv_status::timeout) continue;
      if (found > 0) return {};
      return {has("runtime") ? kRuntimeCode : kNotFoundCode, "nothing"};
    }
  }

  SdkStatus exists(const std::vector<std::string>& keys, std::vector<bool>& out) override {
    std::vector<SdkMemory> found;
    (void)get(keys, 0, found);
    out.clear();
    for (const SdkMemory& memory : found) out.push_back(memory.data != nullptr);
    return {};
  }

  SdkStatus erase(const std::vector<std::string>& keys) override {
    const std::lock_guard lock(world_.mutex);
    for (const std::string& key : keys) world_.values.erase(key);
    return {};
  }

  SdkStatus expire(const std::vector<std::string>& keys, uint32_t ttl_s) override {
    const std::lock_guard lock(world_.mutex);
    for (const std::string& key : keys) {
      const auto at = world_.values.find(key);
      if (at == world_.values.end()) return {kNotFoundCode, "nothing"};
      at->second.expires =
          ttl_s == 0 ? Clock::time_point::max() : Clock::now() + std::chrono::seconds(ttl_s);
    }
    return {};
  }

  SdkStatus check_health() override {
    if (exclusive_ && has("crowded")) return {kCrowdedCode, "too many"};
    if (has("unhealthy")) return {8, "not ready"};
    return {};
  }

 private:
  std::shared_ptr<std::byte> memory(uint64_t size) {
    if (!has("heap")) return world_.arena.take(size);
    return {new std::byte[size], [](std::byte* data) { delete[] data; }};
  }
  SdkMemory shown(const std::string& key, const Value& value) {
    const std::set<std::string> flipped = lines("flip");
    if (!flipped.contains("") && !flipped.contains(key))
      return {value.memory, value.memory.get(), value.size};
    std::shared_ptr<std::byte> copy = memory(value.size);
    std::memcpy(copy.get(), value.memory.get(), value.size);
    copy.get()[0] ^= std::byte{1};
    return {copy, copy.get(), value.size};
  }
  bool has(const char* name) const {
    std::error_code error;
    return std::filesystem::exists(folder_ + "/" + name, error);
  }
  std::set<std::string> lines(const char* name) const {
    std::set<std::string> out;
    std::ifstream file(folder_ + "/" + name);
    for (std::string line; std::getline(file, line);) out.insert(line);
    return out;
  }
  void stall(const char* name) const {
    while (has(name)) std::this_thread::sleep_for(2ms);
  }

  World& world_;
  const std::string folder_;
  const std::string secret_key_;
  const bool exclusive_;
};

class FakeSdk final : public Sdk {
 public:
  explicit FakeSdk(MappingListener& listener) : world_(listener) {}
  std::unique_ptr<SdkClient> connect(const SdkOptions& options) override {
    return std::make_unique<FakeClient>(world_, options);
  }
  SdkStatus workers(const std::string&, std::vector<std::string>&) override { return {}; }

 private:
  World world_;
};

Sdk* make_fake_sdk(MappingListener& listener) { return new FakeSdk(listener); }

}  // namespace
}  // namespace stagelink::broker

extern "C" __attribute__((visibility("default")))
const stagelink::broker::SdkPlugin stagelink_sdk_plugin;
const stagelink::broker::SdkPlugin stagelink_sdk_plugin = {stagelink::broker::kSdkVersion,
                                                           &stagelink::broker::make_fake_sdk};
