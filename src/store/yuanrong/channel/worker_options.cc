#include "store/yuanrong/channel/worker_options.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>
#include <sodium.h>

#include "base/bytes.h"
#include "base/endpoint.h"
#include "base/secret_file.h"
#include "store/yuanrong/channel/protocol.h"

namespace stagelink::store::yuanrong {
namespace {

constexpr size_t kMinKeyBytes = 1;
constexpr size_t kMaxRingMembers = 64;

void wipe(std::string& text) noexcept {
  if (!text.empty()) sodium_memzero(text.data(), text.size());
}

// The one line of the file, or of the variable where no file is named.
Result<std::string> read_secret(const std::string& path, const char* variable) {
  std::string text;
  if (!path.empty()) {
    SL_ASSIGN(const Secret secret, read_secret_file(path, kMinKeyBytes));
    text.assign(reinterpret_cast<const char*>(secret.bytes().data()), secret.bytes().size());
  } else if (const char* value = std::getenv(variable); value != nullptr) {
    text = value;
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) {
    text.pop_back();
  }
  if (text.size() <= kMaxSecretBytes && text.find_first_of(std::string("\n\0", 2)) == text.npos) {
    return text;
  }
  wipe(text);
  return Status(Reason::kInvalidArgument,
                fmt::format("{}: a key or token is one line of at most {} bytes",
                            path.empty() ? variable : path, kMaxSecretBytes));
}

Status check_pair(const std::string& a, const char* a_name, const std::string& b,
                  const char* b_name) {
  if (a.empty() == b.empty()) return {};
  return Status(Reason::kInvalidArgument,
                fmt::format("{} is given and {} is not: give both or neither",
                            a.empty() ? b_name : a_name, a.empty() ? a_name : b_name));
}

// A Curve key is 32 bytes as Z85 writes them.
Status check_curve_key(const std::string& key, const char* name) {
  constexpr std::string_view kOthers = ".-:+=^!/*?&<>()[]{}@%$#";
  const auto is_z85 = [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           kOthers.find(c) != kOthers.npos;
  };
  if (key.empty() || (key.size() == 40 && std::all_of(key.begin(), key.end(), is_z85))) return {};
  return Status(Reason::kInvalidArgument,
                fmt::format("{}: a Curve key is 40 characters of Z85, this has {} characters{}",
                            name, key.size(), key.size() == 40 ? ", some of them others" : ""));
}

uint32_t milliseconds(Duration duration) noexcept {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(duration).count();
  return ms < 1 ? 1 : ms > 3'600'000 ? 3'600'000 : static_cast<uint32_t>(ms);
}

// All texts, in the order of the layout.
template <typename Options>
auto texts_of(Options& options) {
  return std::array{&options.host,
                    &options.tenant_id,
                    &options.access_key,
                    &options.secret_key,
                    &options.client_public_key,
                    &options.client_private_key,
                    &options.server_public_key,
                    &options.token,
                    &options.etcd_address,
                    &options.ring};
}

}  // namespace

WorkerOptions::~WorkerOptions() {
  wipe(access_key);
  wipe(secret_key);
  wipe(client_private_key);
  wipe(token);
}

std::string WorkerOptions::digest() const {
  std::vector<std::byte> all = encode_worker_options(*this);
  std::array<unsigned char, 16> sum{};
  crypto_generichash(sum.data(), sum.size(), reinterpret_cast<const unsigned char*>(all.data()),
                     all.size(), nullptr, 0);
  sodium_memzero(all.data(), all.size());
  return std::string(reinterpret_cast<const char*>(sum.data()), sum.size());
}

Result<std::vector<std::string>> parse_ring(const std::string& ring) {
  std::vector<std::string> members;
  for (size_t at = 0; at < ring.size();) {
    const size_t end = std::min(ring.find(',', at), ring.size());
    const std::string member = ring.substr(at, end - at);
    at = end + 1;
    Result<Endpoint> endpoint = parse_endpoint(member);
    if (!endpoint.ok()) {
      return Status(Reason::kInvalidArgument,
                    fmt::format("ring: \"{}\": {}", member, endpoint.status().message()));
    }
    if (members.size() == kMaxRingMembers) {
      return Status(Reason::kInvalidArgument,
                    fmt::format("ring: more than {} workers", kMaxRingMembers));
    }
    members.push_back(endpoint->to_string());
  }
  return members;
}

Result<WorkerOptions> read_worker_options(const YuanrongOptions& options) {
  WorkerOptions out;
  out.host = options.host;
  out.port = options.port;
  out.connect_timeout_ms = milliseconds(options.connect_timeout);
  out.request_timeout_ms = milliseconds(options.request_timeout);
  out.health_interval_ms = milliseconds(options.health_interval);
  out.ring_timeout_ms = milliseconds(options.ring_timeout);
  out.exclusive = options.exclusive_connection;
  out.cross_node = options.cross_node_connection;
  out.tenant_id = options.tenant_id;
  out.etcd_address = options.etcd_address;
  out.ring = options.ring;
  SL_TRY(parse_ring(out.ring).status());
  SL_ASSIGN(out.access_key, read_secret(options.access_key_file, "STAGELINK_YUANRONG_ACCESS_KEY"));
  SL_ASSIGN(out.secret_key, read_secret(options.secret_key_file, "STAGELINK_YUANRONG_SECRET_KEY"));
  SL_ASSIGN(out.client_public_key,
            read_secret(options.client_public_key_file, "STAGELINK_YUANRONG_CLIENT_PUBLIC_KEY"));
  SL_ASSIGN(out.client_private_key,
            read_secret(options.client_private_key_file, "STAGELINK_YUANRONG_CLIENT_PRIVATE_KEY"));
  SL_ASSIGN(out.server_public_key,
            read_secret(options.server_public_key_file, "STAGELINK_YUANRONG_SERVER_PUBLIC_KEY"));
  SL_ASSIGN(out.token, read_secret(options.token_file, "STAGELINK_YUANRONG_TOKEN"));
  SL_TRY(check_pair(out.access_key, "access_key_file", out.secret_key, "secret_key_file"));
  SL_TRY(check_pair(out.client_public_key, "client_public_key_file", out.client_private_key,
                    "client_private_key_file"));
  SL_TRY(check_pair(out.client_public_key, "client_public_key_file", out.server_public_key,
                    "server_public_key_file"));
  SL_TRY(check_curve_key(out.client_public_key, "client_public_key_file"));
  SL_TRY(check_curve_key(out.client_private_key, "client_private_key_file"));
  SL_TRY(check_curve_key(out.server_public_key, "server_public_key_file"));
  return out;
}

std::vector<std::byte> encode_worker_options(const WorkerOptions& options) {
  ByteWriter writer;
  writer.put(kProtocolVersion);
  writer.put(options.port);
  writer.put(options.connect_timeout_ms);
  writer.put(options.request_timeout_ms);
  writer.put(options.health_interval_ms);
  writer.put(options.ring_timeout_ms);
  writer.put(static_cast<uint8_t>(options.exclusive));
  writer.put(static_cast<uint8_t>(options.cross_node));
  for (const std::string* text : texts_of(options)) writer.put_string(*text);
  return writer.take();
}

Result<WorkerOptions> decode_worker_options(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  if (const auto version = reader.get<uint32_t>(); version != kProtocolVersion) {
    return Status(Reason::kVersion, fmt::format("the client speaks version {} of the broker's "
                                                "protocol, this broker speaks {}",
                                                version, kProtocolVersion));
  }
  WorkerOptions out;
  out.port = reader.get<uint16_t>();
  out.connect_timeout_ms = reader.get<uint32_t>();
  out.request_timeout_ms = reader.get<uint32_t>();
  out.health_interval_ms = reader.get<uint32_t>();
  out.ring_timeout_ms = reader.get<uint32_t>();
  out.exclusive = reader.get<uint8_t>() != 0;
  out.cross_node = reader.get<uint8_t>() != 0;
  for (std::string* text : texts_of(out)) *text = reader.get_string();
  if (reader.done() && out.health_interval_ms != 0 && out.connect_timeout_ms != 0) return out;
  return Status(Reason::kFrame, fmt::format("a hello of {} bytes cannot be read", bytes.size()));
}

}  // namespace stagelink::store::yuanrong
