#include "connector/encoder_cache/registry/registry_client.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include <fmt/format.h>

#include "base/endpoint.h"
#include "base/mutex.h"
#include "base/text.h"
#include "connector/encoder_cache/registry/http/http_client.h"
#include "connector/encoder_cache/registry/http/request_target.h"
#include "connector/encoder_cache/registry/messages.h"
#include "connector/encoder_cache/registry/signature.h"

namespace stagelink::encoder_cache {
namespace {

constexpr std::string_view kHttpScheme = "http://";
// A request on a connection that has gone stale is asked again on a new one, and one that was
// signed for a registry that has been restarted since, with a new signature.
constexpr int kTries = 3;
constexpr std::string_view kUnknownHash = "unknown mm_hash";

struct RegistryUrl {
  Endpoint server;
  std::string prefix;  // Without a "/" at its end.
};

Result<RegistryUrl> parse_url(const std::string& url) {
  const auto wrong = [&url](std::string_view why) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("registry URL \"{}\": {}", to_plain_text(url, 256), why));
  };
  if (url.starts_with("https://")) {
    return wrong("TLS is not spoken; write http://HOST:PORT and use secret_file");
  }
  if (!url.starts_with(kHttpScheme) || !is_plain_text(url))
    return wrong("http://HOST:PORT is expected");
  const std::string_view rest = std::string_view(url).substr(kHttpScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  RegistryUrl found;
  auto server = parse_endpoint(rest.substr(0, slash));
  if (!server.ok()) return wrong(server.status().message());
  found.server = *std::move(server);
  if (found.server.port == 0) return wrong("port 0 cannot be connected to");
  found.prefix = rest.substr(slash);
  while (found.prefix.ends_with('/')) found.prefix.pop_back();
  if (found.prefix.find_first_of(" ?#") != std::string::npos) return wrong("the path has \" ?#\"");
  return found;
}

Status refusal_of(const HttpReply& reply, std::string_view target) {
  std::string detail = decode_detail(reply.body);
  if (detail.empty()) detail = "no reason given";
  const std::string text = fmt::format("registry: {}: {} {}", target, reply.status, detail);
  switch (reply.status) {
    case 400: return Status(Reason::kInvalidArgument, text);
    case 401: return Status(Reason::kAuthentication, text);
    case 404: return Status(Reason::kNotFound, text);
    case 413:
    case 431: return Status(Reason::kTooLarge, text);
    case 503: return Status(Reason::kBusy, text);
    case 507: return Status(Reason::kLimit, text);
    default: return Status(Reason::kFrame, text);
  }
}

}  // namespace

class RegistryClient::Core final {
 public:
  Core(std::string prefix, std::unique_ptr<HttpClient> http, std::shared_ptr<const SigningKey> key)
      : prefix_(std::move(prefix)), http_(std::move(http)), key_(std::move(key)) {}

  // The body of an answer of 200; any other is an error.
  Result<std::string> ask(std::string_view method, const std::string& path, std::string_view body,
                          const Deadline& deadline);

  std::optional<InstanceId> instance() const {
    MutexLock lock(mutex_);
    return instance_;
  }
  void interrupt() noexcept { http_->interrupt(); }
  bool has_key() const noexcept { return key_ != nullptr; }

  std::atomic<bool> is_of_seed{false};

 private:
  void learn(const HttpReply& reply);
  Status meet(const Deadline& deadline);

  const std::string prefix_;
  const std::unique_ptr<HttpClient> http_;
  const std::shared_ptr<const SigningKey> key_;
  mutable Mutex mutex_;
  std::optional<InstanceId> instance_ SL_GUARDED_BY(mutex_);
};

void RegistryClient::Core::learn(const HttpReply& reply) {
  auto instance = parse_instance(reply.registry);
  MutexLock lock(mutex_);
  // A registry of the seed has none.
  if (instance.ok()) instance_ = *instance;
}

// A signature names the registry's instance, which any answer tells.
Status RegistryClient::Core::meet(const Deadline& deadline) {
  const std::string target = prefix_ + "/healthz";
  bool stale = false;
  SL_ASSIGN(const HttpReply reply,
            http_->ask({.method = "GET", .target = target}, deadline, stale));
  learn(reply);
  return {};
}

Result<std::string> RegistryClient::Core::ask(std::string_view method, const std::string& path,
                                              std::string_view body, const Deadline& deadline) {
  const std::string target = prefix_ + path;
  if (key_ != nullptr && !instance().has_value()) SL_TRY(meet(deadline));
  Status last;
  for (int i = 0; i < kTries; ++i) {
    const auto registry = instance();
    // Without the prefix, which whoever forwards it to the registry takes off.
    const std::string signature =
        key_ == nullptr ? "" : key_->sign(registry.value_or(InstanceId{}), {method, path, body});
    bool stale = false;
    auto reply = http_->ask({method, target, body, signature}, deadline, stale);
    if (!reply.ok()) {
      last = reply.status();
      if (stale) continue;
      return last;
    }
    learn(*reply);
    if (reply->status == 200) return std::move(reply->body);
    last = refusal_of(*reply, path);
    // It was signed for another instance than the one that answers.
    if (reply->status == 401 && key_ != nullptr && instance() != registry) continue;
    return last;
  }
  return last;
}

RegistryClient::RegistryClient(std::unique_ptr<Core> core) noexcept : core_(std::move(core)) {}

RegistryClient::~RegistryClient() = default;

Result<std::unique_ptr<RegistryClient>> RegistryClient::create(
    const RegistryClientOptions& options) {
  SL_ASSIGN(RegistryUrl url, parse_url(options.url));
  std::shared_ptr<const SigningKey> key;
  if (!options.secret_file.empty()) {
    SL_ASSIGN(key, SigningKey::from_file(options.secret_file));
  }
  SL_ASSIGN(auto http, HttpClient::create(std::move(url.server), options.max_body_bytes));
  return std::unique_ptr<RegistryClient>(new RegistryClient(
      std::make_unique<Core>(std::move(url.prefix), std::move(http), std::move(key))));
}

Result<std::optional<ProducerEntry>> RegistryClient::lookup(std::string_view mm_hash,
                                                            const Deadline& deadline,
                                                            Duration wait) {
  std::string path = "/ec/info/" + percent_encode(mm_hash);
  if (wait > Duration::zero()) path += fmt::format("?wait={}", to_seconds(wait));
  auto body = core_->ask("GET", path, {}, deadline);
  if (!body.ok()) {
    if (body.status().code() == Code::kNotFound) return std::optional<ProducerEntry>();
    return body.status();
  }
  SL_ASSIGN(ProducerEntry entry, decode_info(*body));
  return std::optional<ProducerEntry>(std::move(entry));
}

Result<std::vector<std::vector<ProducerEntry>>> RegistryClient::query(
    std::span<const std::string> mm_hashes, const Deadline& deadline, Duration wait) {
  const QueryRequest request{.mm_hashes = {mm_hashes.begin(), mm_hashes.end()}, .wait = wait};
  auto body = core_->ask("POST", "/ec/query", encode(request), deadline);
  if (body.ok()) {
    core_->is_of_seed.store(false);
    return decode_producers(*body, mm_hashes.size());
  }
  // One of the seed says of this request that there is no such page, and never who it is.
  const Status& no_such_page = body.status();
  if (no_such_page.code() != Code::kNotFound || core_->has_key() || instance().has_value()) {
    return no_such_page;
  }
  std::vector<std::vector<ProducerEntry>> producers(mm_hashes.size());
  for (size_t i = 0; i < mm_hashes.size(); ++i) {
    auto info = core_->ask("GET", "/ec/info/" + percent_encode(mm_hashes[i]), {}, deadline);
    if (info.ok()) {
      SL_ASSIGN(ProducerEntry entry, decode_info(*info));
      entry.knows_leases = false;
      producers[i].push_back(std::move(entry));
    } else if (info.status().message().find(kUnknownHash) == std::string_view::npos) {
      return info.status().code() == Code::kNotFound ? no_such_page : info.status();
    }
  }
  core_->is_of_seed.store(true);
  return producers;
}

Result<PublishOutcome> RegistryClient::publish(const PublishTerms& terms,
                                               std::span<const PublishedItem> items,
                                               const Deadline& deadline) {
  SL_ASSIGN(const std::string body,
            core_->ask("POST", "/ec/publish", encode_publish(terms, items), deadline));
  return decode_outcome(body, items.size());
}

Result<uint64_t> RegistryClient::unpublish(const LeaseId& lease,
                                           std::span<const std::string> mm_hashes,
                                           const Deadline& deadline) {
  const UnpublishRequest request{.lease = lease, .mm_hashes = {mm_hashes.begin(), mm_hashes.end()}};
  SL_ASSIGN(const std::string body, core_->ask("POST", "/ec/unpublish", encode(request), deadline));
  return decode_count(body);
}

Result<uint64_t> RegistryClient::unpublish_all(const LeaseId& lease, const Deadline& deadline) {
  SL_ASSIGN(const std::string body,
            core_->ask("POST", "/ec/unpublish",
                       encode(UnpublishRequest{.lease = lease, .all = true}), deadline));
  return decode_count(body);
}

Result<RenewOutcome> RegistryClient::renew(const LeaseId& lease, Duration ttl,
                                           const Deadline& deadline) {
  auto body = core_->ask("POST", "/ec/renew", encode(RenewRequest{lease, ttl}), deadline);
  if (!body.ok()) {
    if (body.status().code() == Code::kNotFound) return RenewOutcome{};
    return body.status();
  }
  SL_ASSIGN(const uint64_t entries, decode_count(*body));
  return RenewOutcome{.known = true, .entries = entries};
}

std::optional<InstanceId> RegistryClient::instance() const { return core_->instance(); }

bool RegistryClient::is_of_seed() const noexcept { return core_->is_of_seed.load(); }

void RegistryClient::interrupt() noexcept { core_->interrupt(); }

}  // namespace stagelink::encoder_cache
