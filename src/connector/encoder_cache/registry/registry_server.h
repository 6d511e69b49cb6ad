#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/endpoint.h"
#include "connector/encoder_cache/registry/registry_table.h"
#include "stagelink/engine_options.h"
#include "stagelink/result.h"

namespace stagelink::encoder_cache {

struct RegistryOptions {
  std::string host = "127.0.0.1";  // A wildcard only if it is given.
  uint32_t port = 9018;            // 0: any free one.
  std::string secret_file;
  TableLimits table;
  uint32_t max_connections = 4096;
  uint64_t max_body_bytes = uint64_t{1} << 20;
  Duration request_timeout = std::chrono::seconds(10);  // For a first request, and for an answer.
  Duration idle_timeout = std::chrono::seconds(75);     // Up to the end of the next request.
  Duration max_wait = std::chrono::seconds(60);         // Of one request; a longer one is refused.
  Duration tick = std::chrono::seconds(1);              // While there is something that may end.

  // What its errors call these options: as whoever starts it knows them.
  struct Names {
    std::string_view host = "host";
    std::string_view port = "port";
    std::string_view secret_file = "secret_file";
    std::string_view max_bytes = "max_bytes";
  } names;

  static constexpr uint64_t kMinTableBytes = 64 << 10;
};

// The registry as an HTTP server on one thread of its own; see docs/encoder-cache.md for its
// requests.
//
// Thread-safety: all methods may run at the same time.
class RegistryServer {
 public:
  // Listens when it returns. Errors: already_exists (port_in_use), invalid_argument (host,
  // max_bytes), those of read_secret_file.
  static Result<std::unique_ptr<RegistryServer>> start(const RegistryOptions& options);
  ~RegistryServer();
  RegistryServer(const RegistryServer&) = delete;
  RegistryServer& operator=(const RegistryServer&) = delete;

  const Endpoint& endpoint() const noexcept;
  const InstanceId& instance() const noexcept;

  // As the requests of the same names, for a producer in this process; those who wait are woken.
  Result<PublishOutcome> publish(const PublishTerms& terms, std::span<const PublishedItem> items);
  uint64_t unpublish(const LeaseId& lease, std::span<const std::string> mm_hashes);
  RegistryTable& table() noexcept;

  uint64_t waiting() const noexcept;  // Requests that wait for a hash.
  std::string metrics_text() const;   // Prometheus.
  void close();                       // Idempotent. Waiting requests end unanswered.

 private:
  class Core;
  explicit RegistryServer(std::unique_ptr<Core> core) noexcept;
  const std::unique_ptr<Core> core_;
};

}  // namespace stagelink::encoder_cache
