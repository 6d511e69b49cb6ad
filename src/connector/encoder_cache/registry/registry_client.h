#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "connector/encoder_cache/registry/entry.h"
#include "connector/encoder_cache/registry/registry_table.h"
#include "stagelink/result.h"

namespace stagelink::encoder_cache {

struct RegistryClientOptions {
  std::string url;  // "http://host:port", with or without a path in front of the registry's.
  std::string secret_file;
  uint64_t max_body_bytes = uint64_t{16} << 20;  // Of an answer.
};

struct RenewOutcome {
  bool known = false;  // False: publish all again.
  uint64_t entries = 0;
};

// Asks a registry, over one connection that is kept. Every request has a deadline; one that fails
// on a connection that has gone stale is tried once more on a new one. Errors of all requests:
// unreachable, timed_out, peer_lost, cancelled (interrupted), permission (authentication),
// corrupt (frame: no answer of a registry), busy, limit (too_large), and what the registry refuses.
//
// Thread-safety: one thread at a time; interrupt() from any.
class RegistryClient {
 public:
  // Connects with the first request. Errors: invalid_argument (url), those of read_secret_file.
  static Result<std::unique_ptr<RegistryClient>> create(const RegistryClientOptions& options);
  ~RegistryClient();
  RegistryClient(const RegistryClient&) = delete;
  RegistryClient& operator=(const RegistryClient&) = delete;

  // As the seed's consumers ask: one producer. Waits up to `wait` until there is one; nothing: not
  // known.
  Result<std::optional<ProducerEntry>> lookup(std::string_view mm_hash, const Deadline& deadline,
                                              Duration wait = Duration::zero());
  // The producers of each hash, in order; waits up to `wait` until at least one hash has any. A
  // registry of the seed knows neither: it is asked for one hash after the other, and its producers
  // are said to know no leases.
  Result<std::vector<std::vector<ProducerEntry>>> query(std::span<const std::string> mm_hashes,
                                                        const Deadline& deadline,
                                                        Duration wait = Duration::zero());

  Result<PublishOutcome> publish(const PublishTerms& terms, std::span<const PublishedItem> items,
                                 const Deadline& deadline);
  Result<uint64_t> unpublish(const LeaseId& lease, std::span<const std::string> mm_hashes,
                             const Deadline& deadline);
  Result<uint64_t> unpublish_all(const LeaseId& lease, const Deadline& deadline);
  Result<RenewOutcome> renew(const LeaseId& lease, Duration ttl, const Deadline& deadline);

  // The instance that answered last. None before the first answer.
  std::optional<InstanceId> instance() const;

  // The last query was answered by a registry of the seed.
  bool is_of_seed() const noexcept;

  // Ends the request that runs and all that follow.
  void interrupt() noexcept;

 private:
  class Core;
  explicit RegistryClient(std::unique_ptr<Core> core) noexcept;
  const std::unique_ptr<Core> core_;
};

}  // namespace stagelink::encoder_cache
