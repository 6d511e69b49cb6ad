#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/deadline.h"
#include "base/endpoint.h"
#include "base/mutex.h"
#include "connector/encoder_cache/consumer/embedding.h"
#include "connector/encoder_cache/consumer/seed_source.h"
#include "connector/encoder_cache/metrics.h"
#include "connector/encoder_cache/options.h"
#include "connector/pull/pull_connector.h"

namespace stagelink::encoder_cache {

struct ConsumerUsage {
  uint64_t pool_size = 0;
  uint64_t pool_used = 0;
  uint64_t in_flight = 0;  // Hashes.
  uint64_t handed_on = 0;  // Embeddings that are offered to others, or still read by them.
};

// Gets embeddings from producers: leases them, reads them through the engine to where they belong,
// and releases them. See docs/encoder-cache.md.
//
// Thread-safety: all methods may run at the same time, close() too, which ends what waits.
class Consumer {
 public:
  // `may_hand_on`: listens as well, for those that hand_on() is for, and for `foreign` messages.
  // Errors: those of PullConnector::create.
  static Result<std::unique_ptr<Consumer>> create(const CacheOptions& options, bool may_hand_on,
                                                  pull::ForeignMessages foreign = nullptr);
  ~Consumer();
  Consumer(const Consumer&) = delete;
  Consumer& operator=(const Consumer&) = delete;

  // All at once, from any number of producers; one outcome a request, in order. A hash without
  // memory of its own that another call is loading is loaded once, for both. Ok means that the
  // bytes are those that the producer saved under the hash. Errors: invalid_argument, incompatible
  // (what entries say does not go together, or the producer's identity is another one), not_found,
  // superseded, unreachable, peer_lost, timed_out, no_space (the pool), cancelled, corrupt,
  // invalid_state.
  std::vector<Result<Embedding>> load(std::span<const LoadRequest> requests,
                                      const LoadTerms& terms = {});

  // Room in its pool. Errors: those of PullConnector::allocate.
  Result<pull::Piece> allocate(uint64_t bytes, Duration timeout, const Interrupted& interrupted);
  // Offers a loaded embedding to `readers` others, until they have read it or take_back(). It is
  // held as long. Each time is another generation, whose readers are its own. Errors: those of
  // PullConnector::put_piece.
  Result<ProducerEntry> hand_on(const Embedding& embedding, uint32_t readers);
  void take_back(std::string_view mm_hash, uint64_t generation);

  std::string zmq_address() const;  // "tcp://host:port"; of those that may hand on.
  ConsumerUsage usage() const;
  CacheMetrics& metrics() noexcept { return metrics_; }
  const CacheMetrics& metrics() const noexcept { return metrics_; }
  const CacheOptions& options() const noexcept { return options_; }
  std::string metrics_text() const;

  Status close(Duration timeout = std::chrono::seconds(5));
  bool closed() const noexcept { return pull_->closed(); }

 private:
  struct Flight;  // One hash on its way.
  struct Wanted;  // One request of a call.
  Consumer(const CacheOptions& options, std::unique_ptr<pull::PullConnector> pull);
  Status check(const LoadRequest& request) const;
  std::vector<Wanted*> board(std::span<Wanted* const> wanted) SL_EXCLUDES(mutex_);
  void land(std::span<Wanted* const> wanted) SL_EXCLUDES(mutex_);
  void count(Wanted& wanted);
  void fetch(std::span<Wanted* const> wanted, const LoadTerms& terms, const Deadline& deadline);
  void ask_round(std::span<Wanted* const> wanted, const LoadTerms& terms, const Deadline& deadline);
  void await(Wanted& wanted, const LoadTerms& terms, const Deadline& deadline);
  void ask_seeds(std::span<Wanted* const> wanted, const LoadTerms& terms, const Deadline& deadline);
  std::string key_of(const Wanted& wanted) const;
  Status explain_miss(const Endpoint& producer, const Status& miss, const Deadline& deadline);

  const CacheOptions options_;
  const std::string key_prefix_;  // Of what producers of this identity offer.
  CacheMetrics metrics_;
  const std::unique_ptr<pull::PullConnector> pull_;
  SeedSource seeds_;
  std::atomic<uint64_t> next_hand_on_{1};
  mutable Mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<Flight>> flights_ SL_GUARDED_BY(mutex_);
};

}  // namespace stagelink::encoder_cache
