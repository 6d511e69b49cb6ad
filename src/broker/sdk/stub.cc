// A stand-in for libdatasystem.so that the plug-in is linked against, so that it names the library
// and its symbols without needing the wheel. Never installed and never run.
#include <cstdlib>

#include "broker/sdk/datasystem.h"

namespace datasystem {

StatusCode Status::GetCode() const { std::abort(); }
std::string Status::GetMsg() const { std::abort(); }
Status::Status(Status&&) noexcept { std::abort(); }
SensitiveValue::SensitiveValue(const SensitiveValue&) { std::abort(); }
SensitiveValue& SensitiveValue::operator=(const std::string&) { std::abort(); }
SensitiveValue::~SensitiveValue() { std::abort(); }
void* Buffer::MutableData() { std::abort(); }
int64_t ReadOnlyBuffer::GetSize() const { std::abort(); }
const void* ReadOnlyBuffer::ImmutableData() { std::abort(); }
KVClient::KVClient(const ConnectOptions&) { std::abort(); }
KVClient::~KVClient() { std::abort(); }
Status KVClient::Init() { std::abort(); }
Status KVClient::Set(const std::string&, const StringView&, const SetParam&) { std::abort(); }
Status KVClient::Create(const std::string&, uint64_t, const SetParam&, std::shared_ptr<Buffer>&) {
  std::abort();
}
Status KVClient::Set(const std::shared_ptr<Buffer>&) { std::abort(); }
Status KVClient::Get(const std::string&, Optional<ReadOnlyBuffer>&, int32_t) { std::abort(); }
Status KVClient::Get(const std::vector<std::string>&, std::vector<Optional<ReadOnlyBuffer>>&,
                     int32_t) {
  std::abort();
}
Status KVClient::Exist(const std::vector<std::string>&, std::vector<bool>&) { std::abort(); }
Status KVClient::Del(const std::vector<std::string>&, std::vector<std::string>&) { std::abort(); }
Status KVClient::Expire(const std::vector<std::string>&, uint32_t, std::vector<std::string>&) {
  std::abort();
}
Status KVClient::HealthCheck() { std::abort(); }
ServiceDiscovery::ServiceDiscovery(const ServiceDiscoveryOptions&) { std::abort(); }
Status ServiceDiscovery::Init() { std::abort(); }
Status ServiceDiscovery::GetAllWorkers(std::vector<std::string>&, std::vector<std::string>&) {
  std::abort();
}

}  // namespace datasystem
