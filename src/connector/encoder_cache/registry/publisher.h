#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/deadline.h"
#include "connector/encoder_cache/registry/entry.h"
#include "connector/encoder_cache/registry/registry_client.h"
#include "stagelink/result.h"

namespace stagelink::encoder_cache {

struct PublisherOptions {
  RegistryClientOptions registry;
  std::string producer_zmq;
  Duration lease_ttl = std::chrono::seconds(30);  // Renewed every third of it.
  Duration request_timeout = std::chrono::seconds(2);
  uint64_t max_entries = 262'144;
};

struct PublisherCounts {
  uint64_t published = 0;    // Told to a registry and taken.
  uint64_t refused = 0;      // Told and not taken.
  uint64_t republished = 0;  // How often all was told again to a registry that did not know us.
  uint64_t failures = 0;     // Requests without an answer.
};

// Keeps a registry told what this producer has: publishes and unpublishes in the background, many
// in one request, renews its lease, and tells all again to a registry that has been restarted.
//
// Thread-safety: all methods may run at the same time.
class RegistryPublisher {
 public:
  // Errors: those of RegistryClient::create; invalid_argument (producer_zmq).
  static Result<std::unique_ptr<RegistryPublisher>> start(const PublisherOptions& options);
  // Closes.
  ~RegistryPublisher();
  RegistryPublisher(const RegistryPublisher&) = delete;
  RegistryPublisher& operator=(const RegistryPublisher&) = delete;

  // Neither waits for the registry. Errors: those of entry.h; limit (max_entries), invalid_state.
  Status publish(PublishedItem item);
  Status unpublish(std::string_view mm_hash);
  // Until the registry has been told all that was said before. Errors: timed_out says what keeps
  // failing, invalid_state (closed).
  Status flush(const Deadline& deadline);

  uint64_t entries() const;
  PublisherCounts counts() const;
  // Takes all back at the registry as far as it answers by then, and ends. Idempotent.
  void close(const Deadline& deadline);

 private:
  class Core;
  explicit RegistryPublisher(std::unique_ptr<Core> core) noexcept;
  const std::unique_ptr<Core> core_;
};

}  // namespace stagelink::encoder_cache
