#include <cstring>
#include <optional>
#include <utility>

#include "broker/sdk.h"
#include "broker/sdk/datasystem.h"

namespace stagelink::broker {
namespace {

SdkStatus to_status(const datasystem::Status& status) {
  SdkStatus out;
  out.code = static_cast<uint32_t>(status.GetCode());
  if (out.code != 0) out.message = status.GetMsg();
  return out;
}

datasystem::ConnectOptions to_connect_options(const SdkOptions& options) {
  datasystem::ConnectOptions out;
  out.host = options.host;
  out.port = options.port;
  out.connectTimeoutMs = options.connect_timeout_ms;
  out.requestTimeoutMs = options.request_timeout_ms;
  out.enableExclusiveConnection = options.exclusive;
  out.enableCrossNodeConnection = options.cross_node;
  out.tenantId = options.tenant_id;
  out.accessKey = options.access_key;
  out.secretKey = options.secret_key;
  out.clientPublicKey = options.client_public_key;
  out.clientPrivateKey = options.client_private_key;
  out.serverPublicKey = options.server_public_key;
  out.token = options.token;
  return out;
}

datasystem::SetParam to_set_param(const SdkPutTerms& terms) {
  datasystem::SetParam out;
  out.writeMode = static_cast<datasystem::WriteMode>(terms.write_mode);
  out.ttlSecond = terms.ttl_s;
  return out;
}

SdkMemory to_memory(datasystem::Optional<datasystem::ReadOnlyBuffer>& buffer) {
  if (!buffer) return {};
  auto hold = std::make_shared<datasystem::ReadOnlyBuffer>(*buffer);
  const int64_t size = hold->GetSize();
  // Nobody writes through the pointer: the broker only hands its place on, and views are read-only.
  auto* const data = static_cast<std::byte*>(const_cast<void*>(hold->ImmutableData()));
  if (data == nullptr || size <= 0) return {};
  return {std::move(hold), data, static_cast<uint64_t>(size)};
}

class WheelClient final : public SdkClient {
 public:
  explicit WheelClient(const SdkOptions& options) : client_(to_connect_options(options)) {}

  SdkStatus init() override { return to_status(client_.Init()); }

  SdkStatus set(const std::string& key, std::span<const std::byte> value,
                const SdkPutTerms& terms) override {
    const datasystem::StringView view(reinterpret_cast<const char*>(value.data()), value.size());
    return to_status(client_.Set(key, view, to_set_param(terms)));
  }

  SdkStatus create(const std::string& key, uint64_t size, const SdkPutTerms& terms,
                   SdkMemory& out) override {
    std::shared_ptr<datasystem::Buffer> buffer;
    SdkStatus status = to_status(client_.Create(key, size, to_set_param(terms), buffer));
    if (!status.ok()) return status;
    void* const data = buffer == nullptr ? nullptr : buffer->MutableData();
    if (data == nullptr) return {5, "the library gave no memory"};
    out = {std::move(buffer), static_cast<std::byte*>(data), size};
    return status;
  }

  SdkStatus publish(const SdkMemory& memory) override {
    return to_status(client_.Set(std::static_pointer_cast<datasystem::Buffer>(memory.hold)));
  }

  SdkStatus get(const std::vector<std::string>& keys, int32_t wait_ms,
                std::vector<SdkMemory>& out) override {
    out.assign(keys.size(), {});
    if (keys.size() == 1) {
      datasystem::Optional<datasystem::ReadOnlyBuffer> one;
      SdkStatus status = to_status(client_.Get(keys.front(), one, wait_ms));
      if (status.ok()) out.front() = to_memory(one);
      return status;
    }
    std::vector<datasystem::Optional<datasystem::ReadOnlyBuffer>> many;
    SdkStatus status = to_status(client_.Get(keys, many, wait_ms));
    if (!status.ok()) return status;
    for (size_t i = 0; i < many.size() && i < out.size(); ++i) out[i] = to_memory(many[i]);
    return status;
  }

  SdkStatus exists(const std::vector<std::string>& keys, std::vector<bool>& out) override {
    SdkStatus status = to_status(client_.Exist(keys, out));
    out.resize(keys.size());
    return status;
  }

  SdkStatus erase(const std::vector<std::string>& keys) override {
    std::vector<std::string> failed;
    SdkStatus status = to_status(client_.Del(keys, failed));
    if (status.ok() && !failed.empty()) return {5, "not deleted: " + failed.front()};
    return status;
  }

  SdkStatus expire(const std::vector<std::string>& keys, uint32_t ttl_s) override {
    std::vector<std::string> failed;
    SdkStatus status = to_status(client_.Expire(keys, ttl_s, failed));
    if (status.ok() && !failed.empty()) return {3, "not there: " + failed.front()};
    return status;
  }

  SdkStatus check_health() override { return to_status(client_.HealthCheck()); }

 private:
  datasystem::KVClient client_;
};

class WheelSdk final : public Sdk {
 public:
  std::unique_ptr<SdkClient> connect(const SdkOptions& options) override {
    return std::make_unique<WheelClient>(options);
  }

  SdkStatus workers(const std::string& etcd_address, std::vector<std::string>& out) override {
    if (discovery_ == nullptr || discovery_address_ != etcd_address) {
      datasystem::ServiceDiscoveryOptions options;
      options.etcdAddress = etcd_address;
      auto made = std::make_unique<datasystem::ServiceDiscovery>(options);
      if (SdkStatus status = to_status(made->Init()); !status.ok()) return status;
      discovery_ = std::move(made);
      discovery_address_ = etcd_address;
    }
    std::vector<std::string> others;
    SdkStatus status = to_status(discovery_->GetAllWorkers(out, others));
    out.insert(out.end(), others.begin(), others.end());
    return status;
  }

 private:
  std::unique_ptr<datasystem::ServiceDiscovery> discovery_;
  std::string discovery_address_;
};

Sdk* make_wheel_sdk(MappingListener&) { return new WheelSdk; }

}  // namespace
}  // namespace stagelink::broker

extern "C" STAGELINK_EXTERN const stagelink::broker::SdkPlugin stagelink_sdk_plugin;
const stagelink::broker::SdkPlugin stagelink_sdk_plugin = {stagelink::broker::kSdkVersion,
                                                           &stagelink::broker::make_wheel_sdk};
