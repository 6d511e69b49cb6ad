#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "connector/encoder_cache/registry/entry.h"
#include "connector/pull/pull_connector.h"
#include "connector/zmq/socket.h"

namespace stagelink::encoder_cache {

// Gets embeddings from producers that know no leases: each is sent
//   {"op": "pull", "mm_hash", "dst_session": our engine, "dst_ptr", "nbytes"}
// and writes the embedding to that address. The memory there is registered for this one pull and
// nothing else, and taken back before its bytes are believed: a producer that writes later, or
// elsewhere, finds nothing. What it wrote is its word alone: there is no stamp.
//
// Thread-safety: all methods may run at the same time.
class SeedSource {
 public:
  // `pull` outlives it. `patience` bounds reaching a producer.
  SeedSource(pull::PullConnector& pull, Duration patience) noexcept
      : pull_(pull), patience_(patience) {}
  SeedSource(const SeedSource&) = delete;
  SeedSource& operator=(const SeedSource&) = delete;

  struct Ask {
    std::string_view mm_hash;
    const ProducerEntry* entry = nullptr;
    std::span<std::byte> into;  // Empty: a piece of the pool.
  };
  // One outcome an ask, in order; the piece is empty if it went to given memory. Errors: not_found,
  // incompatible (the producer's has another size), unreachable, timed_out, cancelled, corrupt
  // (frame: no such answer), no_space.
  std::vector<Result<pull::Piece>> get(std::span<const Ask> asks, const Deadline& deadline,
                                       const Interrupted& interrupted);

 private:
  struct Pulling;
  using Line = std::unique_ptr<zmq::Dealer>;

  Status begin(const Ask& ask, Pulling& pulling, const Deadline& deadline);
  Status await(Pulling& pulling, const Deadline& deadline, const Interrupted& interrupted);
  Result<pull::Piece> take(const Ask& ask, Pulling& pulling, const Deadline& deadline,
                           const Interrupted& interrupted);
  Result<Line> line_to(const std::string& producer_zmq) SL_EXCLUDES(mutex_);
  void keep(const std::string& producer_zmq, Line line) SL_EXCLUDES(mutex_);

  pull::PullConnector& pull_;
  const Duration patience_;
  Mutex mutex_;
  std::shared_ptr<zmq::Context> context_ SL_GUARDED_BY(mutex_);  // Made when it is needed.
  std::multimap<std::string, Line> idle_ SL_GUARDED_BY(mutex_);  // By their producers.
};

}  // namespace stagelink::encoder_cache
