#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "connector/encoder_cache/registry/entry.h"
#include "stagelink/engine_options.h"

namespace stagelink::encoder_cache {

struct TableLimits {
  uint64_t max_entries = 262'144;  // Of all producers together.
  uint64_t max_bytes = uint64_t{128} << 20;
  uint32_t max_producers = 16;  // Of one hash.
  uint32_t max_leases = 4096;
};

struct TableUsage {
  uint64_t entries = 0;  // Those that have ended count until they are swept.
  uint64_t hashes = 0;
  uint64_t bytes = 0;  // Of the table itself, as far as it counts them.
  uint64_t leases = 0;
};

struct PublishTerms {
  LeaseId lease;
  Duration lease_ttl = std::chrono::seconds(30);  // Of the lease, from now on. Zero: no end.
  Duration item_ttl = Duration::zero();           // Of the items. Zero: that of the lease.
  std::string producer_zmq;
};

struct PublishOutcome {
  bool fresh = false;  // The lease was not known: nothing of its holder was here before.
  std::vector<Status> items;
};

// Who has which embedding: mm_hash -> producers. Nothing in it is the truth: the producer is asked.
// A producer's entries live as long as its lease, which it renews; what has ended is not shown, and
// swept a few at a time.
//
// Thread-safety: all methods may run at the same time. `now` is for tests.
class RegistryTable {
 public:
  using Clock = std::chrono::steady_clock;
  using Now = Clock::time_point;

  explicit RegistryTable(const TableLimits& limits = {});
  RegistryTable(const RegistryTable&) = delete;
  RegistryTable& operator=(const RegistryTable&) = delete;
  ~RegistryTable();

  // Makes or renews the lease, and adds or replaces its entries. Another lease of the same address
  // ends: its producer has been restarted. Errors of all: invalid_argument (the address is not the
  // lease's), limit (leases). Errors of an item: those of entry.h; limit (entries, bytes, producers
  // of the hash).
  Result<PublishOutcome> publish(const PublishTerms& terms, std::span<const PublishedItem> items,
                                 Now now = Clock::now());
  // How many of them were there.
  uint64_t unpublish(const LeaseId& lease, std::span<const std::string> mm_hashes);
  uint64_t unpublish_all(const LeaseId& lease);
  // How many entries it holds. Errors: not_found, superseded (expired): publish all again.
  Result<uint64_t> renew(const LeaseId& lease, Duration ttl, Now now = Clock::now());

  // Of several producers the next in turn.
  std::optional<ProducerEntry> lookup(std::string_view mm_hash, Now now = Clock::now());
  // All that are known, none if none is.
  std::vector<ProducerEntry> lookup_all(std::string_view mm_hash, Now now = Clock::now()) const;

  // Looks at the next `buckets` of the table and drops what has ended; how many those were.
  uint64_t sweep(size_t buckets, Now now = Clock::now());

  TableUsage usage() const;
  const TableLimits& limits() const noexcept { return limits_; }

 private:
  struct Lease;
  struct Record;
  struct Bucket;
  struct State;

  const TableLimits limits_;
  mutable Mutex mutex_;
  const std::unique_ptr<State> state_ SL_GUARDED_BY(mutex_);
};

}  // namespace stagelink::encoder_cache
