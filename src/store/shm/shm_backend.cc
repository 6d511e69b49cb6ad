#include "store/shm/shm_backend.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "base/fork_guard.h"
#include "base/mutex.h"
#include "base/text.h"
#include "memory/memory_room.h"
#include "memory/pin_gate.h"
#include "store/shm/arena.h"
#include "store/shm/shm_objects.h"

namespace stagelink::store::shm {
namespace {

// A sleeper looks up even if nobody wakes it: who should have may have died between the store and
// the wake-up.
constexpr Duration kGetNap = std::chrono::seconds(1);
// A writer that waits for space also looks for what dead processes hold, who wake nobody.
constexpr Duration kSpaceNap = std::chrono::milliseconds(250);
constexpr int kLookTries = 64;  // Of a search without the lock, while the index is made anew.

std::string shown(std::string_view key) {
  return fmt::format("`{}`{}", escape_control(key.substr(0, 80)), key.size() > 80 ? "..." : "");
}

// What a look has found.
struct Look {
  enum class Next : uint8_t {
    kDone,
    kAgain,   // Something has changed meanwhile.
    kLocked,  // Only the lock's holder can tell.
  };
  ViewPtr view;
  Grave grave = Grave::kEmpty;
  Next next = Next::kDone;
};

class ShmBackend final : public Backend {
 public:
  ShmBackend(const StoreOptions& options, std::shared_ptr<Arena> arena)
      : options_(options),
        fork_token_(ForkGuard::arm()),
        life_(std::make_shared<StoreLife>(std::move(arena))) {}

  Result<WriterPtr> create(std::string_view key, uint64_t size, const PutTerms& terms) override;
  Result<ViewPtr> get(std::string_view key, const GetTerms& terms) override;
  Result<bool> exists(std::string_view key) override;
  Status erase(std::string_view key, uint64_t generation) override;
  Status expire(std::string_view key, Duration ttl) override;
  Result<StoreUsage> usage() override;
  Status health() override;
  std::string metrics_text(std::string_view labels) override;
  Status close(const Deadline& deadline) override;

 private:
  // While this lives and is ok, the store does not leave the arena.
  class Use {
   public:
    explicit Use(ShmBackend& backend);
    ~Use() {
      if (pinned_) backend_.gate_.unpin();
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    const Status& status() const noexcept { return status_; }

   private:
    ShmBackend& backend_;
    Status status_;
    bool pinned_ = false;
  };

  Arena& arena() const noexcept { return *life_->arena; }
  bool forked() const noexcept { return ForkGuard::forked(fork_token_); }
  Status closed_meanwhile() const;
  uint32_t try_place(const Arena::Locked& locked, const ObjectTable::Put& put, bool sweep_dead);
  Status no_space(const ObjectTable::Put& put) const;
  Look look(uint64_t hash, std::string_view key);
  Look look_locked(const Arena::Locked& locked, uint64_t hash, std::string_view key);
  Result<Look> settle(uint64_t hash, std::string_view key);

  const StoreOptions options_;
  const uint64_t fork_token_;
  memory::PinGate gate_;
  Mutex close_mutex_;                // Of several that close, one leaves.
  std::shared_ptr<StoreLife> life_;  // Null once closed, which nobody sees who is not in the gate.
};

ShmBackend::Use::Use(ShmBackend& backend) : backend_(backend) {
  if (backend.forked()) {
    status_ = forked_status("the store");
  } else if (!backend.gate_.try_pin()) {
    status_ = Status(Reason::kClosed, "the store was closed");
  } else {
    pinned_ = true;
  }
}

Status ShmBackend::closed_meanwhile() const {
  return gate_.closed() ? Status(Reason::kClosed, "the store was closed") : Status();
}

Result<WriterPtr> ShmBackend::create(std::string_view key, uint64_t size, const PutTerms& terms) {
  const Use use(*this);
  SL_TRY(use.status());
  const uint64_t capacity = arena().map().geometry().capacity;
  if (size > capacity || span_of(size, key.size()) > capacity) {
    return Status(Reason::kTooLarge,
                  fmt::format("key {}: {} can never fit into arena `{}`, whose capacity is {}",
                              shown(key), memory::readable_bytes(size), options_.arena.name,
                              memory::readable_bytes(capacity)));
  }
  const ObjectTable::Put put{key, arena().map().hash_of(key), size, arena().member()};
  for (bool first = true;; first = false) {
    uint32_t armed = 0;
    {
      SL_ASSIGN(const auto locked, arena().lock());
      const uint32_t slot = try_place(locked, put, !first);
      if (slot != kNone) return WriterPtr(std::make_unique<ShmWriter>(life_, slot, terms.ttl));
      armed = WaitWord(arena().space_word()).arm();
    }
    SL_TRY(closed_meanwhile());
    if (terms.deadline.passed()) return no_space(put);
    // The first look goes without the search for dead processes, which costs a system call each.
    if (first) continue;
    WaitWord(arena().space_word()).sleep(armed, std::min(terms.deadline.left(), kSpaceNap));
  }
}

uint32_t ShmBackend::try_place(const Arena::Locked& locked, const ObjectTable::Put& put,
                               bool sweep_dead) {
  ObjectTable& objects = locked.objects();
  (void)objects.sweep_expired(now_ns());
  uint32_t slot = objects.place(put);
  if (slot != kNone) return slot;
  if (objects.sweep_retired()) slot = objects.place(put);
  if (slot == kNone && sweep_dead && arena().sweep_dead(locked)) slot = objects.place(put);
  if (slot == kNone && options_.eviction == EvictionMode::kEvict &&
      objects.evict(span_of(put.size, put.key.size()))) {
    slot = objects.place(put);
  }
  return slot;
}

Status ShmBackend::no_space(const ObjectTable::Put& put) const {
  const Header& header = arena().map().header();
  return Status(
      Reason::kNoSpace,
      fmt::format("key {}: no room for {} in arena `{}`: {} of {} are in use, and {} of {} objects",
                  shown(put.key), memory::readable_bytes(put.size), options_.arena.name,
                  memory::readable_bytes(header.used_bytes.get()),
                  memory::readable_bytes(arena().map().geometry().capacity), header.objects.get(),
                  arena().map().max_objects()));
}

Look ShmBackend::look(uint64_t hash, std::string_view key) {
  const ArenaMap& map = arena().map();
  const uint32_t epoch = map.header().index_epoch.load(std::memory_order_acquire);
  SlotIndex::Search search(map, hash);
  for (uint32_t at = search.next(); at != kNone; at = search.next()) {
    const Tag tag = map.tag(at);
    const Slot& slot = map.slot(at);
    if (tag.state() != SlotState::kSealed) {
      // It goes just now.
      return {nullptr, Grave::kEmpty, Look::Next::kAgain};
    }
    if (slot.hash.get() != hash) continue;
    if (!arena().begin_view(at, tag)) return {nullptr, Grave::kEmpty, Look::Next::kAgain};
    const uint64_t expiry = slot.expiry_ns.get();
    const bool same = map.key_is(slot, key);
    if (same && (expiry == 0 || now_ns() < expiry)) {
      return {std::make_unique<ShmView>(life_, at, tag)};
    }
    arena().end_view(at);
    if (same) return {nullptr, Grave::kEmpty, Look::Next::kLocked};  // Its time has passed.
  }
  const uint64_t grave = map.header().graves[hash % kGraves].get();
  const bool settled =
      (epoch & 1) == 0 && map.header().index_epoch.load(std::memory_order_acquire) == epoch;
  if (!settled) return {nullptr, Grave::kEmpty, Look::Next::kAgain};
  if ((grave & ~uint64_t{3}) != (hash & ~uint64_t{3})) return {};
  return {nullptr, static_cast<Grave>(grave & 3)};
}

Look ShmBackend::look_locked(const Arena::Locked& locked, uint64_t hash, std::string_view key) {
  const ArenaMap& map = arena().map();
  (void)locked.objects().sweep_expired(now_ns());
  const uint32_t at = locked.objects().find(hash, key);
  if (at != kNone) {
    const Tag tag = map.tag(at);
    if (arena().begin_view(at, tag)) {
      return {std::make_unique<ShmView>(life_, at, tag)};
    }
  }
  const uint64_t grave = map.header().graves[hash % kGraves].get();
  if ((grave & ~uint64_t{3}) != (hash & ~uint64_t{3})) return {};
  return {nullptr, static_cast<Grave>(grave & 3)};
}

Result<Look> ShmBackend::settle(uint64_t hash, std::string_view key) {
  for (int tries = 0; tries < kLookTries; ++tries) {
    Look found = look(hash, key);
    if (found.next == Look::Next::kDone) return found;
    if (found.next == Look::Next::kLocked) break;
  }
  SL_ASSIGN(const auto locked, arena().lock());
  return look_locked(locked, hash, key);
}

Result<ViewPtr> ShmBackend::get(std::string_view key, const GetTerms& terms) {
  const Use use(*this);
  SL_TRY(use.status());
  const uint64_t hash = arena().map().hash_of(key);
  WaitWord word(arena().key_word(hash));
  uint32_t armed = 0;
  for (bool is_armed = false;; is_armed = true) {
    SL_TRY(closed_meanwhile());
    SL_ASSIGN(Look found, settle(hash, key));
    if (found.view != nullptr) return std::move(found.view);
    if (found.grave != Grave::kEmpty) {
      const bool expired = found.grave == Grave::kExpired;
      return Status(expired ? Reason::kExpired : Reason::kEvicted,
                    fmt::format("key {}: its object {}", shown(key),
                                expired ? "has expired" : "gave way to others"));
    }
    if (!terms.waits) return Status(Reason::kNotFound, fmt::format("key {}", shown(key)));
    if (is_armed) {
      if (terms.deadline.passed()) {
        return Status(Reason::kTimedOut, fmt::format("key {}: nobody has put it", shown(key)));
      }
      word.sleep(armed, std::min(terms.deadline.left(), kGetNap));
      // A sealer that died may have left the index behind the slots.
      if (arena().holder_died()) SL_TRY(arena().lock().status());
    }
    armed = word.arm();
  }
}

Result<bool> ShmBackend::exists(std::string_view key) {
  const Use use(*this);
  SL_TRY(use.status());
  SL_ASSIGN(const Look found, settle(arena().map().hash_of(key), key));
  return found.view != nullptr;
}

Status ShmBackend::erase(std::string_view key, uint64_t generation) {
  const Use use(*this);
  SL_TRY(use.status());
  SL_ASSIGN(const auto locked, arena().lock());
  const uint32_t at = locked.objects().find(arena().map().hash_of(key), key);
  if (at == kNone) return {};
  if (generation != 0 && arena().map().tag(at).generation() != generation) return {};
  locked.objects().retire(at, Grave::kEmpty);
  return {};
}

Status ShmBackend::expire(std::string_view key, Duration ttl) {
  const Use use(*this);
  SL_TRY(use.status());
  SL_ASSIGN(const auto locked, arena().lock());
  const uint64_t now = now_ns();
  (void)locked.objects().sweep_expired(now);
  const uint32_t at = locked.objects().find(arena().map().hash_of(key), key);
  if (at == kNone) return Status(Reason::kNotFound, fmt::format("key {}", shown(key)));
  if (ttl == Duration::zero()) {
    locked.objects().retire(at, Grave::kExpired);
  } else {
    locked.objects().set_expiry(at, expiry_after(now, ttl));
  }
  return {};
}

Result<StoreUsage> ShmBackend::usage() {
  const Use use(*this);
  SL_TRY(use.status());
  SL_ASSIGN(const auto locked, arena().lock());
  (void)locked.objects().sweep_expired(now_ns());
  (void)locked.objects().sweep_retired();
  const ArenaMap& map = arena().map();
  const Header& header = map.header();
  StoreUsage usage;
  usage.capacity_bytes = map.geometry().capacity;
  usage.used_bytes = header.used_bytes.get();
  usage.objects = header.objects.get();
  usage.leased = locked.objects().viewed();
  usage.evictions = header.evictions.get();
  usage.expirations = header.expirations.get();
  return usage;
}

Status ShmBackend::health() {
  const Use use(*this);
  return use.status();
}

std::string ShmBackend::metrics_text(std::string_view labels) {
  const Use use(*this);
  if (!use.status().ok()) return {};
  auto usage = this->usage();
  if (!usage.ok()) return {};
  struct Row {
    const char* name;
    const char* kind;
    const char* help;
    uint64_t value;
  };
  const Row rows[] = {
      {"capacity_bytes", "gauge", "Bytes that objects can take.", usage->capacity_bytes},
      {"used_bytes", "gauge", "Bytes of objects: sealed, being written, and held by views.",
       usage->used_bytes},
      {"objects", "gauge", "Sealed objects.", usage->objects},
      {"leased_objects", "gauge", "Objects under a view.", usage->leased},
      {"evictions_total", "counter", "Objects that gave way to others.", usage->evictions},
      {"expirations_total", "counter", "Objects whose time had passed.", usage->expirations},
      {"lock_recoveries_total", "counter", "Times that the lists were made anew.",
       arena().map().header().recoveries.get()},
  };
  std::string out;
  for (const Row& row : rows) {
    out += fmt::format(
        "# HELP stagelink_store_{0} {1}\n# TYPE stagelink_store_{0} {2}\n"
        "stagelink_store_{0}{{{3}}} {4}\n",
        row.name, row.help, row.kind, labels, row.value);
  }
  return out;
}

Status ShmBackend::close(const Deadline& deadline) {
  if (forked()) return forked_status("the store");
  if (!gate_.closed()) {
    const Use use(*this);
    gate_.close();
    if (use.status().ok()) {
      life_->closed.store(true);
      arena().wake_everybody();
    }
  }
  if (!gate_.wait_unpinned(deadline)) {
    return Status(Reason::kBusy, "close: calls of other threads are still under way");
  }
  const MutexLock lock(close_mutex_);
  life_.reset();
  return {};
}

}  // namespace

Result<std::shared_ptr<Backend>> make_shm_backend(const StoreOptions& options, Pauses pauses) {
  SL_ASSIGN(auto arena, Arena::open(options.arena, pauses));
  return std::shared_ptr<Backend>(std::make_shared<ShmBackend>(options, std::move(arena)));
}

}  // namespace stagelink::store::shm
