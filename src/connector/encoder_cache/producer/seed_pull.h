#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "connector/encoder_cache/metrics.h"
#include "connector/encoder_cache/producer/cell_table.h"
#include "connector/pull/foreign.h"
#include "stagelink/engine.h"

namespace stagelink::encoder_cache {

// What such a message asks for.
struct SeedAsk {
  std::string mm_hash;
  std::string session;
  uint64_t address = 0;
  uint64_t nbytes = 0;
};
// Errors: corrupt (frame): no JSON object; invalid_argument: unknown_key ("unknown op"), or names
// the field that is missing or wrong.
Result<SeedAsk> read_seed_ask(std::string_view message);

// Answers the message of peers that know no leases,
//   {"op": "pull", "mm_hash", "dst_session": "host:port", "dst_ptr", "nbytes"},
// by writing the embedding to that address of the engine that listens at dst_session. That engine
// looks the address up among its own registrations: whatever lies outside is refused there.
//   {"ok": true, "mooncake_ret": 0}   {"ok": false, "mooncake_ret": -1, "err": why}
//   {"ok": false, "err": "unknown op" | "unknown mm_hash" | "size mismatch" | what is wrong}
// Whoever sends something else gets an answer, too, and nothing ends.
//
// Thread-safety: all methods may run at the same time.
class SeedPull {
 public:
  // What it serves outlives it. `timeout` bounds one write.
  SeedPull(Engine& engine, const CellTable& cells, CacheMetrics& metrics, Duration timeout);
  // Ends its threads; what is queued gets no answer.
  ~SeedPull();
  SeedPull(const SeedPull&) = delete;
  SeedPull& operator=(const SeedPull&) = delete;

  // Never waits. False: not JSON's beginning.
  bool take(std::span<const std::byte> message, const pull::ForeignAnswer& answer);

 private:
  struct Job {
    std::string message;
    pull::ForeignAnswer answer;
  };
  void run();
  std::string serve(const std::string& message);
  Status write(const Cell& cell, const std::string& session, uint64_t address);
  Result<std::shared_ptr<Peer>> peer_at(const std::string& session) SL_EXCLUDES(mutex_);
  void drop_peer(const std::string& session) SL_EXCLUDES(mutex_);

  Engine& engine_;
  const CellTable& cells_;
  CacheMetrics& metrics_;
  const Duration timeout_;

  Mutex mutex_;
  CondVar work_;
  bool stopping_ SL_GUARDED_BY(mutex_) = false;
  std::deque<Job> jobs_ SL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<Peer>> peers_ SL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace stagelink::encoder_cache
