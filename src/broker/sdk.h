#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

// What the broker needs of the datasystem's client library, and all of it that it sees. The plug-in
// libstagelink-yuanrong-sdk.so implements it over the library of the wheel; tests have one of their
// own. Broker and plug-in are built together and carry the same kSdkVersion.
namespace stagelink::broker {

inline constexpr uint32_t kSdkVersion = 1;

// The library's own number (0: well) and its words.
struct SdkStatus {
  uint32_t code = 0;
  std::string message;
  bool ok() const noexcept { return code == 0; }
};

struct SdkOptions {
  std::string host;
  int32_t port = 0;
  int32_t connect_timeout_ms = 0;
  int32_t request_timeout_ms = 0;
  bool exclusive = false;
  bool cross_node = false;
  std::string tenant_id;
  std::string access_key;
  std::string secret_key;
  std::string client_public_key;
  std::string client_private_key;
  std::string server_public_key;
  std::string token;
};

struct SdkPutTerms {
  uint32_t write_mode = 0;
  uint32_t ttl_s = 0;
};

// Bytes that stay while `hold` is kept. Null: there are none.
struct SdkMemory {
  std::shared_ptr<void> hold;
  std::byte* data = nullptr;
  uint64_t size = 0;
};

// One connection to a worker. With SdkOptions::exclusive each thread that calls has a socket of its
// own.
//
// Thread-safety: all methods may run at the same time.
class SdkClient {
 public:
  virtual ~SdkClient() = default;
  virtual SdkStatus init() = 0;
  virtual SdkStatus set(const std::string& key, std::span<const std::byte> value,
                        const SdkPutTerms& terms) = 0;
  // Memory to fill, which publish() makes visible and dropping gives back.
  virtual SdkStatus create(const std::string& key, uint64_t size, const SdkPutTerms& terms,
                           SdkMemory& out) = 0;
  virtual SdkStatus publish(const SdkMemory& memory) = 0;
  // One entry for each key, without memory where it is not there.
  virtual SdkStatus get(const std::vector<std::string>& keys, int32_t wait_ms,
                        std::vector<SdkMemory>& out) = 0;
  virtual SdkStatus exists(const std::vector<std::string>& keys, std::vector<bool>& out) = 0;
  virtual SdkStatus erase(const std::vector<std::string>& keys) = 0;
  virtual SdkStatus expire(const std::vector<std::string>& keys, uint32_t ttl_s) = 0;
  virtual SdkStatus check_health() = 0;
};

// Hears of every shared mapping of a file that the library makes, before its address is used.
class MappingListener {
 public:
  virtual void mapped(void* address, size_t bytes, int fd, off_t offset) noexcept = 0;
  virtual void unmapped(void* address, size_t bytes) noexcept = 0;

 protected:
  ~MappingListener() = default;
};

class Sdk {
 public:
  virtual ~Sdk() = default;
  virtual std::unique_ptr<SdkClient> connect(const SdkOptions& options) = 0;
  // The addresses of the workers that are alive, by etcd. One thread at a time.
  virtual SdkStatus workers(const std::string& etcd_address, std::vector<std::string>& out) = 0;
};

// What the plug-in exports as stagelink_sdk_plugin. `listener` outlives the Sdk; a plug-in whose
// mappings the broker sees by itself does not use it.
struct SdkPlugin {
  uint32_t version = 0;
  Sdk* (*make)(MappingListener& listener) = nullptr;
};

}  // namespace stagelink::broker
