#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "connector/encoder_cache/options.h"
#include "connector/encoder_cache/push/pusher.h"
#include "connector/encoder_cache/registry/entry.h"
#include "connector/pull/foreign.h"
#include "connector/pull/pull_connector.h"

namespace stagelink::encoder_cache {

class Announcer;
class CacheMetrics;
class CellTable;
class SeedPull;

struct ProducerUsage {
  uint64_t entries = 0;
  uint64_t pool_size = 0;
  uint64_t pool_used = 0;
  uint64_t leases = 0;  // Of consumers, at present.
  uint64_t evictions = 0;
  double oldest_age_seconds = 0;
};

// Keeps embeddings in a bounded pool where consumers lease and read them, and says at a registry
// that it has them. See docs/encoder-cache.md.
//
// Thread-safety: all methods may run at the same time.
class Producer {
 public:
  // Listens when it returns. Errors: those of PullConnector::create and of the registry.
  static Result<std::unique_ptr<Producer>> create(const CacheOptions& options);
  ~Producer();
  Producer(const Producer&) = delete;
  Producer& operator=(const Producer&) = delete;

  // Copies `bytes` and publishes them. One that is there already is the youngest now. Makes room by
  // evicting the oldest that nobody has leased, and waits for the others up to space_timeout.
  // Errors: invalid_argument, incompatible (what does not go together), no_space, limit
  // (too_large), cancelled, invalid_state. Each is logged and counted.
  Status save(std::string_view mm_hash, const EmbeddingInfo& info, std::span<const std::byte> bytes,
              const Interrupted& interrupted = {});
  bool has(std::string_view mm_hash) const;
  // Takes it from the registry, then frees it as soon as nobody reads it. True if it was there.
  bool evict(std::string_view mm_hash);
  // Pushes (ec_mode: push): announces it to its consumer, and gives it to it once it is saved, or
  // at once if it has been. Never waits. Errors: those of Pusher::order; invalid_state in pull
  // mode.
  Status push(const PushOrder& order);
  // It will not be saved after all: whoever was promised it is told.
  void give_up(std::string_view mm_hash, const Status& why);
  void cancel_push(std::string_view transfer_id);
  uint64_t pending_pushes() const;
  std::vector<PushFailure> take_push_failures();

  // Until the registry has been told of all that was saved.
  Status flush(Duration timeout);

  std::string producer_zmq() const;                  // "tcp://host:port"
  const std::string& registry_url() const noexcept;  // Empty where it pushes.
  ProducerUsage usage() const;
  const CacheMetrics& metrics() const noexcept;
  std::string metrics_text() const;

  // Takes everything back from the registry, waits for readers, ends. Idempotent. Errors: busy.
  Status close(Duration timeout = std::chrono::seconds(5));

 private:
  explicit Producer(const CacheOptions& options);
  Result<pull::Piece> make_room(uint64_t bytes, const Interrupted& interrupted);
  uint64_t evict_idle(uint64_t bytes);
  Status keep(std::string_view mm_hash, const EmbeddingInfo& info, std::span<const std::byte> bytes,
              const Interrupted& interrupted);

  const CacheOptions options_;
  const std::shared_ptr<pull::ForeignHook> hook_;
  const std::unique_ptr<CacheMetrics> metrics_;
  const std::unique_ptr<CellTable> cells_;
  std::unique_ptr<SeedPull> seed_pull_;
  std::unique_ptr<pull::PullConnector> pull_;
  std::unique_ptr<Announcer> announcer_;  // Null where it pushes.
  std::unique_ptr<Pusher> pusher_;        // Null where it does not.
};

}  // namespace stagelink::encoder_cache
