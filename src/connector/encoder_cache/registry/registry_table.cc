#include "connector/encoder_cache/registry/registry_table.h"

#include <algorithm>
#include <limits>

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include "base/random.h"
#include "connector/serializer/dtype.h"

namespace stagelink::encoder_cache {
namespace {

using Now = RegistryTable::Now;

constexpr uint32_t kNoLease = std::numeric_limits<uint32_t>::max();
// What the allocator keeps beside each piece, and the map beside each node.
constexpr uint64_t kAllocationBytes = 16;
constexpr uint64_t kNodeBytes = 3 * sizeof(void*);
constexpr size_t kInlineText = 15;  // Of std::string.

Now end_of(Now now, Duration ttl) noexcept {
  if (ttl <= Duration::zero() || ttl > Deadline::kLongest) return Now::max();
  return now + ttl;
}

}  // namespace

// Slots of the vector in State; freed when no record names them any more.
struct RegistryTable::Lease {
  LeaseId id;
  std::string producer_zmq;
  Now ends = Now::min();
  uint64_t entries = 0;

  bool alive(Now now) const noexcept { return ends > now; }
};

struct RegistryTable::Record {
  uint64_t nbytes = 0;
  uint64_t generation = 0;
  Now ends = Now::max();
  uint32_t lease = kNoLease;
  uint8_t dtype = 0;
  uint8_t dim_count = 0;
  std::array<uint32_t, kMaxShapeDims> dims{};
};

struct RegistryTable::Bucket {
  Record first;  // Of no lease only while the bucket is being made.
  std::unique_ptr<std::vector<Record>> more;

  size_t size() const noexcept {
    return (first.lease == kNoLease ? 0 : 1) + (more == nullptr ? 0 : more->size());
  }
  Record& at(size_t index) noexcept { return index == 0 ? first : (*more)[index - 1]; }
  const Record& at(size_t index) const noexcept { return index == 0 ? first : (*more)[index - 1]; }
  void add(const Record& record) {
    if (first.lease == kNoLease) {
      first = record;
      return;
    }
    if (more == nullptr) more = std::make_unique<std::vector<Record>>();
    more->push_back(record);
  }
  void remove(size_t index) noexcept {
    if (more == nullptr || more->empty()) {
      first.lease = kNoLease;
      return;
    }
    at(index) = more->back();
    more->pop_back();
    if (more->empty()) more.reset();
  }
  uint64_t more_bytes() const noexcept {
    if (more == nullptr) return 0;
    return sizeof *more + more->capacity() * sizeof(Record) + 2 * kAllocationBytes;
  }
};

struct RegistryTable::State {
  // Whoever may publish chooses the hashes, so their places in the table depend on a secret seed.
  struct SeededHash {
    using is_transparent = void;
    uint64_t seed;
    size_t operator()(std::string_view text) const noexcept {
      return XXH3_64bits_withSeed(text.data(), text.size(), seed);
    }
  };

  struct LeaseIdHash {
    uint64_t seed;
    size_t operator()(const LeaseId& id) const noexcept {
      return XXH3_64bits_withSeed(&id, sizeof id, seed);
    }
  };
  using Map = std::unordered_map<std::string, Bucket, SeededHash, std::equal_to<>>;

  explicit State(uint64_t seed)
      : map(16, SeededHash{seed}), by_id(16, LeaseIdHash{seed}), by_address(16, SeededHash{seed}) {}

  Map map;
  std::vector<Lease> leases;
  std::vector<uint32_t> free_leases;
  std::unordered_map<LeaseId, uint32_t, LeaseIdHash> by_id;
  std::unordered_map<std::string, uint32_t, SeededHash, std::equal_to<>> by_address;
  uint64_t entries = 0;
  uint64_t bytes = 0;
  uint64_t turn = 0;
  size_t cursor = 0;
  Now swept_all = Now::min();

  static uint64_t node_bytes(std::string_view mm_hash) noexcept {
    return sizeof(Map::value_type) + kNodeBytes + kAllocationBytes +
           (mm_hash.size() > kInlineText ? mm_hash.size() + 1 + kAllocationBytes : 0);
  }
  bool alive(const Record& record, Now now) const noexcept {
    return record.ends > now && leases[record.lease].alive(now);
  }
  Result<uint32_t> find_lease(const LeaseId& id, Now now);
  Result<uint32_t> make_lease(const PublishTerms& terms, const TableLimits& limits, Now now);
  void end_lease(uint32_t slot);
  void end_passed_leases(Now now);
  void release(uint32_t slot);
  Status add(uint32_t lease, const PublishedItem& item, Now ends, const TableLimits& limits,
             Now now);
  Status make_room(std::string_view mm_hash, Bucket* bucket, const TableLimits& limits, Now now);
  uint64_t drop_ended(Bucket& bucket, Now now);
  uint64_t drop_of(Bucket& bucket, uint32_t lease);
  void forget_if_empty(Map::iterator at);
  uint64_t sweep_buckets(size_t count, Now now);
  ProducerEntry entry_of(const Record& record) const;
};

Result<uint32_t> RegistryTable::State::find_lease(const LeaseId& id, Now now) {
  const auto at = by_id.find(id);
  if (at == by_id.end()) {
    return Status(Reason::kNotFound, "the lease is not known here: publish all again");
  }
  if (leases[at->second].alive(now)) return at->second;
  end_lease(at->second);
  return Status(Reason::kExpired, "the lease has ended: publish all again");
}

Result<uint32_t> RegistryTable::State::make_lease(const PublishTerms& terms,
                                                  const TableLimits& limits, Now now) {
  // A producer that has been restarted publishes at the address of its former self.
  if (const auto old = by_address.find(terms.producer_zmq); old != by_address.end()) {
    end_lease(old->second);
  }
  if (by_id.size() >= limits.max_leases) end_passed_leases(now);
  // Slots whose records are not swept yet count too: they are bounded like leases.
  if (by_id.size() >= limits.max_leases ||
      (free_leases.empty() && leases.size() >= 2 * uint64_t{limits.max_leases})) {
    return Status(Reason::kLimit,
                  fmt::format("the registry holds its {} leases (max_leases)", limits.max_leases));
  }
  uint32_t slot = 0;
  if (free_leases.empty()) {
    slot = static_cast<uint32_t>(leases.size());
    leases.emplace_back();
  } else {
    slot = free_leases.back();
    free_leases.pop_back();
  }
  leases[slot].id = terms.lease;
  leases[slot].producer_zmq = terms.producer_zmq;
  by_id[terms.lease] = slot;
  by_address[terms.producer_zmq] = slot;
  return slot;
}

void RegistryTable::State::end_lease(uint32_t slot) {
  Lease& lease = leases[slot];
  by_id.erase(lease.id);
  if (const auto at = by_address.find(lease.producer_zmq);
      at != by_address.end() && at->second == slot) {
    by_address.erase(at);
  }
  lease.ends = Now::min();
  if (lease.entries == 0) free_leases.push_back(slot);
}

void RegistryTable::State::end_passed_leases(Now now) {
  std::vector<uint32_t> ended;
  for (const auto& [id, slot] : by_id) {
    if (!leases[slot].alive(now)) ended.push_back(slot);
  }
  for (const uint32_t slot : ended) end_lease(slot);
}

// One record of the lease has gone.
void RegistryTable::State::release(uint32_t slot) {
  Lease& lease = leases[slot];
  --entries;
  if (--lease.entries == 0 && lease.ends == Now::min()) free_leases.push_back(slot);
}

Status RegistryTable::State::make_room(std::string_view mm_hash, Bucket* bucket,
                                       const TableLimits& limits, Now now) {
  if (bucket != nullptr) {
    drop_ended(*bucket, now);
    if (bucket->size() >= limits.max_producers) {
      return Status(Reason::kLimit, fmt::format("mm_hash {} has its {} producers (max_producers)",
                                                mm_hash, limits.max_producers));
    }
  }
  const auto full = [&] {
    return entries >= limits.max_entries || bytes + node_bytes(mm_hash) > limits.max_bytes;
  };
  if (full() && now - std::chrono::seconds(1) > swept_all) {
    swept_all = now;
    sweep_buckets(map.bucket_count(), now);
  }
  if (!full()) return {};
  return Status(Reason::kLimit,
                fmt::format("the registry is full: {} of {} entries (max_entries), {} of {} bytes "
                            "(max_bytes)",
                            entries, limits.max_entries, bytes, limits.max_bytes));
}

Status RegistryTable::State::add(uint32_t lease, const PublishedItem& item, Now ends,
                                 const TableLimits& limits, Now now) {
  SL_TRY(check_mm_hash(item.mm_hash));
  SL_TRY(check_embedding(item.info));
  Record record;
  record.nbytes = item.info.nbytes;
  record.generation = item.generation;
  record.ends = ends;
  record.lease = lease;
  const auto dtypes = serializer::all_dtypes();
  record.dtype = static_cast<uint8_t>(serializer::find_dtype(item.info.dtype) - dtypes.data());
  record.dim_count = static_cast<uint8_t>(item.info.shape.size());
  for (size_t i = 0; i < item.info.shape.size(); ++i) {
    record.dims[i] = static_cast<uint32_t>(item.info.shape[i]);
  }

  auto at = map.find(item.mm_hash);
  if (at != map.end()) {
    for (size_t i = 0; i < at->second.size(); ++i) {
      if (at->second.at(i).lease != lease) continue;
      at->second.at(i) = record;
      return {};
    }
  }
  SL_TRY(make_room(item.mm_hash, at == map.end() ? nullptr : &at->second, limits, now));
  at = map.find(item.mm_hash);  // A sweep may have dropped what was there.
  if (at == map.end()) {
    at = map.try_emplace(item.mm_hash).first;
    bytes += node_bytes(item.mm_hash);
  }
  bytes -= at->second.more_bytes();
  at->second.add(record);
  bytes += at->second.more_bytes();
  ++entries;
  ++leases[lease].entries;
  return {};
}

uint64_t RegistryTable::State::drop_ended(Bucket& bucket, Now now) {
  uint64_t dropped = 0;
  bytes -= bucket.more_bytes();
  for (size_t i = bucket.size(); i-- > 0;) {
    if (alive(bucket.at(i), now)) continue;
    const uint32_t lease = bucket.at(i).lease;
    bucket.remove(i);
    release(lease);
    ++dropped;
  }
  bytes += bucket.more_bytes();
  return dropped;
}

uint64_t RegistryTable::State::drop_of(Bucket& bucket, uint32_t lease) {
  for (size_t i = 0; i < bucket.size(); ++i) {
    if (bucket.at(i).lease != lease) continue;
    bytes -= bucket.more_bytes();
    bucket.remove(i);
    bytes += bucket.more_bytes();
    release(lease);
    return 1;
  }
  return 0;
}

void RegistryTable::State::forget_if_empty(Map::iterator at) {
  if (at->second.size() != 0) return;
  bytes -= node_bytes(at->first);
  map.erase(at);
}

uint64_t RegistryTable::State::sweep_buckets(size_t count, Now now) {
  uint64_t dropped = 0;
  std::vector<std::string> empty;
  count = std::min(count, map.bucket_count());
  for (size_t i = 0; i < count; ++i) {
    if (cursor >= map.bucket_count()) cursor = 0;
    for (auto at = map.begin(cursor); at != map.end(cursor); ++at) {
      dropped += drop_ended(at->second, now);
      if (at->second.size() == 0) empty.push_back(at->first);
    }
    ++cursor;
  }
  for (const std::string& mm_hash : empty) forget_if_empty(map.find(mm_hash));
  return dropped;
}

ProducerEntry RegistryTable::State::entry_of(const Record& record) const {
  ProducerEntry entry;
  entry.info.nbytes = record.nbytes;
  entry.info.shape.assign(record.dims.begin(), record.dims.begin() + record.dim_count);
  entry.info.dtype = serializer::all_dtypes()[record.dtype].name;
  entry.producer_zmq = leases[record.lease].producer_zmq;
  entry.generation = record.generation;
  return entry;
}

RegistryTable::RegistryTable(const TableLimits& limits)
    : limits_(limits), state_(std::make_unique<State>(random_u64())) {}

RegistryTable::~RegistryTable() = default;

Result<PublishOutcome> RegistryTable::publish(const PublishTerms& terms,
                                              std::span<const PublishedItem> items, Now now) {
  SL_TRY(check_producer_address(terms.producer_zmq));
  PublishOutcome outcome;
  outcome.items.reserve(items.size());
  MutexLock lock(mutex_);
  auto known = state_->find_lease(terms.lease, now);
  outcome.fresh = !known.ok();
  if (outcome.fresh) known = state_->make_lease(terms, limits_, now);
  SL_ASSIGN(const uint32_t slot, known);
  Lease& lease = state_->leases[slot];
  if (lease.producer_zmq != terms.producer_zmq) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("producer_zmq is {}, but this lease is that of {}",
                              terms.producer_zmq, lease.producer_zmq));
  }
  lease.ends = end_of(now, terms.lease_ttl);
  const Now ends = end_of(now, terms.item_ttl);
  for (const PublishedItem& item : items) {
    outcome.items.push_back(state_->add(slot, item, ends, limits_, now));
  }
  return outcome;
}

uint64_t RegistryTable::unpublish(const LeaseId& lease, std::span<const std::string> mm_hashes) {
  MutexLock lock(mutex_);
  const auto slot = state_->by_id.find(lease);
  if (slot == state_->by_id.end()) return 0;
  uint64_t gone = 0;
  for (const std::string& mm_hash : mm_hashes) {
    const auto at = state_->map.find(mm_hash);
    if (at == state_->map.end()) continue;
    gone += state_->drop_of(at->second, slot->second);
    state_->forget_if_empty(at);
  }
  return gone;
}

uint64_t RegistryTable::unpublish_all(const LeaseId& lease) {
  MutexLock lock(mutex_);
  const auto slot = state_->by_id.find(lease);
  if (slot == state_->by_id.end()) return 0;
  const uint64_t gone = state_->leases[slot->second].entries;
  state_->end_lease(slot->second);  // The records are swept like those of a dead producer.
  return gone;
}

Result<uint64_t> RegistryTable::renew(const LeaseId& lease, Duration ttl, Now now) {
  MutexLock lock(mutex_);
  SL_ASSIGN(const uint32_t slot, state_->find_lease(lease, now));
  state_->leases[slot].ends = end_of(now, ttl);
  return state_->leases[slot].entries;
}

std::optional<ProducerEntry> RegistryTable::lookup(std::string_view mm_hash, Now now) {
  MutexLock lock(mutex_);
  const auto at = state_->map.find(mm_hash);
  if (at == state_->map.end()) return std::nullopt;
  const Bucket& bucket = at->second;
  const size_t count = bucket.size();
  const uint64_t first = count > 1 ? state_->turn++ : 0;
  for (size_t i = 0; i < count; ++i) {
    const Record& record = bucket.at((first + i) % count);
    if (state_->alive(record, now)) return state_->entry_of(record);
  }
  return std::nullopt;
}

std::vector<ProducerEntry> RegistryTable::lookup_all(std::string_view mm_hash, Now now) const {
  std::vector<ProducerEntry> found;
  MutexLock lock(mutex_);
  const auto at = state_->map.find(mm_hash);
  if (at == state_->map.end()) return found;
  for (size_t i = 0; i < at->second.size(); ++i) {
    const Record& record = at->second.at(i);
    if (state_->alive(record, now)) found.push_back(state_->entry_of(record));
  }
  return found;
}

uint64_t RegistryTable::sweep(size_t buckets, Now now) {
  MutexLock lock(mutex_);
  state_->end_passed_leases(now);
  return state_->sweep_buckets(buckets, now);
}

TableUsage RegistryTable::usage() const {
  MutexLock lock(mutex_);
  return {state_->entries, state_->map.size(),
          state_->bytes + state_->map.bucket_count() * sizeof(void*), state_->by_id.size()};
}

}  // namespace stagelink::encoder_cache
