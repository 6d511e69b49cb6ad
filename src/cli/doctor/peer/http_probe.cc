#include "cli/doctor/peer/http_probe.h"

#include "base/text.h"
#include "connector/encoder_cache/registry/http/http_client.h"
#include "connector/encoder_cache/registry/registry_client.h"

namespace stagelink::cli::doctor {
namespace {

constexpr std::string_view kNobodysHash = "stagelink-doctor";
constexpr uint64_t kMaxBodyBytes = 64 << 10;

Status ask_registry(const Endpoint& endpoint, const std::string& secret_file, Duration timeout) {
  encoder_cache::RegistryClientOptions options;
  options.url = "http://" + endpoint.to_string();
  options.secret_file = secret_file;
  options.max_body_bytes = kMaxBodyBytes;
  SL_ASSIGN(const auto client, encoder_cache::RegistryClient::create(options));
  return client->lookup(kNobodysHash, Deadline::in(timeout)).status();
}

}  // namespace

HttpFacts probe_http(const Endpoint& endpoint, const std::string& secret_file, Duration timeout) {
  HttpFacts facts;
  auto client = encoder_cache::HttpClient::create(endpoint, kMaxBodyBytes);
  if (!client.ok()) return facts;
  const std::string target = "/ec/info/" + std::string(kNobodysHash);
  bool stale = false;
  auto reply = (*client)->ask({.method = "GET", .target = target}, Deadline::in(timeout), stale);
  if (!reply.ok()) return facts;
  facts.status = reply->status;
  facts.instance = to_plain_text(reply->registry, 64);
  const bool unknown = reply->status == 404 && reply->body.find("mm_hash") != std::string::npos;
  facts.registry = unknown || !facts.instance.empty();
  if (!facts.instance.empty()) facts.lookup = ask_registry(endpoint, secret_file, timeout);
  return facts;
}

}  // namespace stagelink::cli::doctor
