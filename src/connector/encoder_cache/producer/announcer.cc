#include "connector/encoder_cache/producer/announcer.h"

#include <utility>

#include <fmt/format.h>

#include "base/endpoint.h"
#include "base/log.h"
#include "base/random.h"
#include "connector/pull/metrics.h"
#include "engine/bind_address.h"

namespace stagelink::encoder_cache {
namespace {

constexpr Duration kUnpublishWait = std::chrono::milliseconds(200);

// Where the producer listens, whatever its peers are told.
Result<std::string> listening_host(const CacheOptions& options) {
  if (options.host != "auto" && !Endpoint{options.host, 0}.wildcard()) return options.host;
  EngineOptions engine;
  engine.bind = "auto";
  engine.interface = options.interface;
  SL_ASSIGN(const Endpoint bound, engine::bind_address(engine));
  return bound.host;
}

}  // namespace

Result<std::unique_ptr<Announcer>> Announcer::open(const CacheOptions& options,
                                                   std::string producer_zmq,
                                                   const std::string& host) {
  if (!options.remote_registry_url.empty()) {
    std::unique_ptr<Announcer> announcer(
        new Announcer(options.remote_registry_url, std::move(producer_zmq)));
    PublisherOptions publisher;
    publisher.registry.url = options.remote_registry_url;
    publisher.registry.secret_file = options.secret_file;
    publisher.producer_zmq = announcer->producer_zmq_;
    publisher.lease_ttl = options.registry_lease;
    publisher.request_timeout = options.registry_timeout;
    publisher.max_entries = options.max_entries;
    SL_ASSIGN(announcer->publisher_, RegistryPublisher::start(publisher));
    return announcer;
  }
  RegistryOptions registry;
  registry.host = options.registry_host;
  if (registry.host.empty()) {
    SL_ASSIGN(registry.host, listening_host(options));
  }
  registry.port = options.registry_http_port;
  registry.secret_file = options.secret_file;
  registry.names.host = options.registry_host.empty() ? "host" : "registry_host";
  registry.names.port = "registry_http_port";
  SL_ASSIGN(auto server, RegistryServer::start(registry));
  Endpoint told = server->endpoint();
  if (options.registry_host.empty() || told.wildcard()) told.host = host;
  std::unique_ptr<Announcer> announcer(
      new Announcer(fmt::format("http://{}", told.to_string()), std::move(producer_zmq)));
  announcer->server_ = std::move(server);
  log(LogLevel::kInfo, "encoder cache",
      fmt::format("EC Mooncake registry listening on {}", announcer->url_));
  return announcer;
}

Announcer::Announcer(std::string url, std::string producer_zmq)
    : url_(std::move(url)), producer_zmq_(std::move(producer_zmq)), lease_(random_instance_id()) {}

void Announcer::publish(PublishedItem item) {
  Status status;
  if (publisher_ != nullptr) {
    status = publisher_->publish(std::move(item));
  } else {
    const PublishTerms terms{.lease = lease_,
                             .lease_ttl = Duration::zero(),
                             .item_ttl = Duration::zero(),
                             .producer_zmq = producer_zmq_};
    auto outcome = server_->publish(terms, std::span(&item, 1));
    status = outcome.ok() ? outcome->items.front() : outcome.status();
  }
  if (!status.ok()) log_failure("encoder cache registry", status);
}

void Announcer::unpublish(std::span<const std::string> mm_hashes) {
  if (mm_hashes.empty()) return;
  if (publisher_ == nullptr) {
    (void)server_->unpublish(lease_, mm_hashes);
    return;
  }
  for (const std::string& mm_hash : mm_hashes) (void)publisher_->unpublish(mm_hash);
  // A registry that is down tells nobody anything.
  (void)publisher_->flush(Deadline::in(kUnpublishWait));
}

Status Announcer::flush(const Deadline& deadline) {
  return publisher_ != nullptr ? publisher_->flush(deadline) : Status();
}

void Announcer::append_metrics(std::string& out, std::string_view labels) const {
  if (publisher_ == nullptr) {
    out += server_->metrics_text();
    return;
  }
  const PublisherCounts counts = publisher_->counts();
  const auto add = [&](std::string_view name, std::string_view help, uint64_t value) {
    pull::append_sample(out, name, help, "counter", labels, static_cast<double>(value));
  };
  add("stagelink_ec_published_total", "Embeddings told to the registry and taken.",
      counts.published);
  add("stagelink_ec_publish_refused_total", "Embeddings told to the registry and not taken.",
      counts.refused);
  add("stagelink_ec_republished_total", "How often a registry was told everything again.",
      counts.republished);
  add("stagelink_ec_registry_failures_total", "Requests that the registry did not answer.",
      counts.failures);
}

void Announcer::close(const Deadline& deadline) {
  if (publisher_ != nullptr) publisher_->close(deadline);
  if (server_ != nullptr) server_->close();
}

}  // namespace stagelink::encoder_cache
