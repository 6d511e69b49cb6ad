// Prints the layouts and signatures that the broker's plug-in relies on: compiled once over our own
// declarations and once (-DTHEIRS) over the headers of the wheel, it must print the same.
#include <cstddef>
#include <cstdio>
#include <typeinfo>

#ifdef THEIRS
#include "datasystem/kv_client.h"
#include "datasystem/utils/service_discovery.h"
#else
#include "broker/sdk/datasystem.h"
#endif

using namespace datasystem;

#define SIZE(type) std::printf("%s %zu %zu\n", #type, sizeof(type), alignof(type))
#define FIELD(type, name) \
  std::printf("%s.%s %zu %zu\n", #type, #name, offsetof(type, name), sizeof(type::name))

// Copied by the library: from left to right, with every default.
void print_options() {
  FIELD(ConnectOptions, host);
  FIELD(ConnectOptions, port);
  FIELD(ConnectOptions, connectTimeoutMs);
  FIELD(ConnectOptions, requestTimeoutMs);
  FIELD(ConnectOptions, token);
  FIELD(ConnectOptions, clientPublicKey);
  FIELD(ConnectOptions, clientPrivateKey);
  FIELD(ConnectOptions, serverPublicKey);
  FIELD(ConnectOptions, accessKey);
  FIELD(ConnectOptions, secretKey);
  FIELD(ConnectOptions, tenantId);
  FIELD(ConnectOptions, enableCrossNodeConnection);
  FIELD(ConnectOptions, enableExclusiveConnection);
  FIELD(ConnectOptions, enableRemoteH2D);
  FIELD(ConnectOptions, serviceDiscovery);
  FIELD(ConnectOptions, fastTransportMemSize);
  FIELD(ConnectOptions, deviceId);
  FIELD(ServiceDiscoveryOptions, etcdAddress);
  FIELD(ServiceDiscoveryOptions, clusterName);
  FIELD(ServiceDiscoveryOptions, etcdCa);
  FIELD(ServiceDiscoveryOptions, etcdCert);
  FIELD(ServiceDiscoveryOptions, etcdKey);
  FIELD(ServiceDiscoveryOptions, etcdDNSName);
  FIELD(ServiceDiscoveryOptions, username);
  FIELD(ServiceDiscoveryOptions, password);
  FIELD(ServiceDiscoveryOptions, tokenRefreshIntervalSec);
  FIELD(ServiceDiscoveryOptions, hostIdEnvName);
  FIELD(ServiceDiscoveryOptions, affinityPolicy);
  FIELD(SetParam, writeMode);
  FIELD(SetParam, ttlSecond);
  FIELD(SetParam, existence);
  FIELD(SetParam, cacheType);
}

int main() {
  SIZE(Status);
  SIZE(SensitiveValue);
  SIZE(StringView);
  SIZE(ConnectOptions);
  SIZE(SetParam);
  SIZE(ReadOnlyBuffer);
  SIZE(Optional<ReadOnlyBuffer>);
  SIZE(KVClient);
  SIZE(ServiceDiscoveryOptions);
  SIZE(ServiceDiscovery);
  print_options();
  const ConnectOptions options{};
  std::printf("%d %d %llu\n", options.connectTimeoutMs, options.requestTimeoutMs,
              static_cast<unsigned long long>(options.fastTransportMemSize));
  using Keys = std::vector<std::string>;
  std::printf("%s\n", typeid(static_cast<Status (KVClient::*)()>(&KVClient::Init)).name());
  std::printf(
      "%s\n",
      typeid(
          static_cast<Status (KVClient::*)(const std::string&, const StringView&, const SetParam&)>(
              &KVClient::Set))
          .name());
  std::printf("%s\n", typeid(&KVClient::Create).name());
  std::printf("%s\n", typeid(&KVClient::Exist).name());
  std::printf("%s\n", typeid(&KVClient::Expire).name());
  std::printf("%s\n", typeid(&KVClient::HealthCheck).name());
  std::printf("%s\n",
              typeid(static_cast<Status (KVClient::*)(const Keys&, Keys&)>(&KVClient::Del)).name());
  std::printf("%s\n", typeid(&ServiceDiscovery::GetAllWorkers).name());
  std::printf("%s\n", typeid(&Buffer::MutableData).name());
  std::printf("%s\n", typeid(&ReadOnlyBuffer::ImmutableData).name());
  std::printf("%s\n", typeid(&ReadOnlyBuffer::GetSize).name());
  return 0;
}
