#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

// The part of the client library's interface that is used, version 0.8.1, in our own words: names,
// signatures and layouts are the library's, so that our calls bind to its symbols. The wheel is not
// there when this is compiled; tests/datasystem compares every layout with the wheel's own headers.
// See docs/decisions/0007-yuanrong-broker.md.
//
// Members without a comment are there for their place alone.
#define STAGELINK_EXTERN __attribute__((visibility("default")))

namespace datasystem {

namespace object_cache {
class ObjectClientImpl;
}
class ServiceDiscovery;
class EtcdStore;
class RandomData;

enum StatusCode : uint32_t { K_OK = 0 };

class STAGELINK_EXTERN Status {
 public:
  StatusCode GetCode() const;
  std::string GetMsg() const;
  Status(Status&& other) noexcept;
  Status(const Status&) = delete;
  ~Status() noexcept = default;

 private:
  struct State {
    StatusCode code;
    std::string text;
  };
  std::unique_ptr<State> state_;
};

class STAGELINK_EXTERN SensitiveValue {
 public:
  SensitiveValue() = default;
  SensitiveValue(const SensitiveValue& other);
  SensitiveValue& operator=(const std::string& text);
  ~SensitiveValue();

 private:
  std::unique_ptr<char[]> data_ = nullptr;
  size_t size_ = 0;
};

class StringView {
 public:
  StringView(const char* data, size_t size) : data_(data), size_(size) {}

 private:
  const char* data_;
  size_t size_;
};

struct ConnectOptions {
  std::string host;
  int32_t port;
  int32_t connectTimeoutMs = 60 * 1000;
  int32_t requestTimeoutMs = 0;
  SensitiveValue token;
  std::string clientPublicKey;
  SensitiveValue clientPrivateKey;
  std::string serverPublicKey;
  std::string accessKey;
  SensitiveValue secretKey;
  std::string tenantId;
  bool enableCrossNodeConnection = false;
  bool enableExclusiveConnection = false;
  bool enableRemoteH2D = false;
  std::shared_ptr<ServiceDiscovery> serviceDiscovery;
  uint64_t fastTransportMemSize = 256 * 1024 * 1024;
  std::string deviceId;
};

enum class WriteMode : int { NONE_L2_CACHE = 0 };
enum class ExistenceOpt : int { NONE = 0 };
enum class CacheType : int { MEMORY = 0 };

struct SetParam {
  WriteMode writeMode = WriteMode::NONE_L2_CACHE;
  uint32_t ttlSecond = 0;
  ExistenceOpt existence = ExistenceOpt::NONE;
  CacheType cacheType = CacheType::MEMORY;
};

// Made and destroyed by the library alone.
class STAGELINK_EXTERN Buffer {
 public:
  void* MutableData();
};

class STAGELINK_EXTERN ReadOnlyBuffer {
 public:
  int64_t GetSize() const;
  const void* ImmutableData();

 private:
  std::shared_ptr<Buffer> buffer_;
};

template <typename T>
class Optional {
 public:
  explicit operator bool() const noexcept { return is_set_; }
  T& operator*() { return value_; }

 private:
  bool is_set_ = false;
  T value_;
};

class STAGELINK_EXTERN KVClient {
 public:
  explicit KVClient(const ConnectOptions& options);
  ~KVClient();
  Status Init();
  Status Set(const std::string& key, const StringView& value, const SetParam& param);
  Status Create(const std::string& key, uint64_t size, const SetParam& param,
                std::shared_ptr<Buffer>& buffer);
  Status Set(const std::shared_ptr<Buffer>& buffer);
  Status Get(const std::string& key, Optional<ReadOnlyBuffer>& buffer, int32_t wait_ms);
  Status Get(const std::vector<std::string>& keys, std::vector<Optional<ReadOnlyBuffer>>& buffers,
             int32_t wait_ms);
  Status Exist(const std::vector<std::string>& keys, std::vector<bool>& exists);
  Status Del(const std::vector<std::string>& keys, std::vector<std::string>& failed);
  Status Expire(const std::vector<std::string>& keys, uint32_t ttl_s,
                std::vector<std::string>& failed);
  Status HealthCheck();

 private:
  std::shared_ptr<object_cache::ObjectClientImpl> impl_;
};

enum class ServiceAffinityPolicy : uint8_t { PREFERRED_SAME_NODE = 0 };

struct ServiceDiscoveryOptions {
  std::string etcdAddress;
  std::string clusterName;
  SensitiveValue etcdCa;
  SensitiveValue etcdCert;
  SensitiveValue etcdKey;
  std::string etcdDNSName;
  std::string username;
  SensitiveValue password;
  uint32_t tokenRefreshIntervalSec = 30;
  std::string hostIdEnvName;
  ServiceAffinityPolicy affinityPolicy = ServiceAffinityPolicy::PREFERRED_SAME_NODE;
};

class STAGELINK_EXTERN ServiceDiscovery {
 public:
  explicit ServiceDiscovery(const ServiceDiscoveryOptions& options);
  ~ServiceDiscovery() = default;
  Status Init();
  Status GetAllWorkers(std::vector<std::string>& same_host, std::vector<std::string>& others);

 private:
  std::string etcdAddress_;
  std::string clusterName_;
  SensitiveValue etcdCa_;
  SensitiveValue etcdCert_;
  SensitiveValue etcdKey_;
  std::string etcdDNSName_;
  std::string username_;
  SensitiveValue password_;
  uint32_t tokenRefreshInterval_;
  std::string hostIdEnvName_;
  std::string hostId_;
  ServiceAffinityPolicy affinityPolicy_;
  std::shared_ptr<RandomData> randomData_;
  std::shared_ptr<EtcdStore> etcdStore_;
};

}  // namespace datasystem
