#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stagelink/engine_options.h"
#include "stagelink/result.h"
#include "stagelink/store_options.h"

namespace stagelink {

namespace store {
class Backend;
class StoreMetrics;
class ViewState;
class WriterState;
}  // namespace store

// An object that is being put. Nobody can get it before seal(). Dropping the writer aborts the put.
//
// Thread-safety: one thread at a time.
class ObjectWriter {
 public:
  ObjectWriter(ObjectWriter&&) noexcept;
  ObjectWriter& operator=(ObjectWriter&&) noexcept;
  ObjectWriter(const ObjectWriter&) = delete;
  ObjectWriter& operator=(const ObjectWriter&) = delete;
  ~ObjectWriter();

  // The object's memory, in order: one piece, but for what a store must split. The caller may fill
  // it in place; the first byte is aligned to 64.
  std::span<const std::span<std::byte>> pieces() const noexcept;
  // Copies `bytes` behind what was appended before. Errors: invalid_argument (out_of_bounds) if
  // they do not fit; nothing is written then.
  Status append(std::span<const std::byte> bytes);

  // Publishes the object under its key and wakes who waits for it. An object of the same key that
  // is there already is replaced: who holds a view of it keeps its bytes, who comes later gets
  // these. Errors: unreachable, peer_lost, timed_out, invalid_state (sealed or aborted before).
  Status seal();
  // Gives the memory back. Idempotent.
  void abort() noexcept;

  uint64_t size() const noexcept;
  // That of the put, once it is sealed; 0 before. See ObjectStore::erase.
  uint64_t generation() const noexcept;

 private:
  friend class ObjectStore;
  ObjectWriter(std::unique_ptr<store::WriterState> state,
               std::shared_ptr<store::StoreMetrics> metrics) noexcept;

  std::unique_ptr<store::WriterState> state_;  // Null: moved from.
  std::shared_ptr<store::StoreMetrics> metrics_;
  uint64_t appended_ = 0;
};

// A lease on a sealed object: its bytes stay as they are until the view is dropped, also when the
// object is replaced, erased, expired or would be evicted.
//
// Thread-safety: a view is immutable; moving it is for one thread.
class ObjectView {
 public:
  ObjectView(ObjectView&&) noexcept;
  ObjectView& operator=(ObjectView&&) noexcept;
  ObjectView(const ObjectView&) = delete;
  ObjectView& operator=(const ObjectView&) = delete;
  ~ObjectView();

  // One run, aligned to 64; empty for an empty object. Copied together where the store has split
  // it.
  std::span<const std::byte> bytes() const noexcept;
  // Counts the puts of a key; never repeats for different bytes under one key.
  uint64_t generation() const noexcept;
  // Ok, or why the bytes can no longer be trusted to stay (the store's broker has died: peer_lost).
  Status valid() const;

 private:
  friend class ObjectStore;
  explicit ObjectView(std::unique_ptr<store::ViewState> state) noexcept;
  std::unique_ptr<store::ViewState> state_;
};

// Asked every 100 ms by a call that waits: true ends it with cancelled. Empty: nobody is asked.
using Interrupted = std::function<bool()>;

struct PutOptions {
  Duration timeout = std::chrono::seconds(5);  // For space, and for a store that is elsewhere.
  Duration ttl = Duration::zero();             // Zero: the store's default; negative: for ever.
  Interrupted interrupted;
};

struct StoreUsage {
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;  // Sealed, being written, and held only by views.
  uint64_t objects = 0;     // Sealed and current.
  uint64_t leased = 0;      // Objects, current or not, under a view.
  uint64_t evictions = 0;   // Since the store was made.
  uint64_t expirations = 0;
};

// Sealed bytes under keys, shared by the processes that open the same store.
//
// Keys: 1 to 1024 bytes, any bytes. Sizes: 0 to the capacity.
//
// Thread-safety: all methods may run at the same time, close() too, which ends what waits with
// invalid_state (closed).
class ObjectStore {
 public:
  // Errors: invalid_argument names the option; already_exists (another size or version under this
  // name), no_space (shm_full), permission (other_user), unreachable, not_found (the backend's
  // package is missing; the message names the command that installs it).
  static Result<std::unique_ptr<ObjectStore>> open(const StoreOptions& options);
  ~ObjectStore();
  ObjectStore(const ObjectStore&) = delete;
  ObjectStore& operator=(const ObjectStore&) = delete;

  // Waits up to the timeout for space. Errors: limit (too_large: can never fit), no_space,
  // cancelled, timed_out, invalid_argument (the key), unreachable.
  Result<ObjectWriter> create(std::string_view key, uint64_t size, const PutOptions& options = {});
  // create, append, seal. Gives the generation of the put.
  Result<uint64_t> put(std::string_view key, std::span<const std::byte> bytes,
                       const PutOptions& options = {});

  // Looks at once with a zero timeout, otherwise waits for the put. Errors: not_found (zero
  // timeout), timed_out, superseded (expired, evicted: where the store knows), unreachable,
  // peer_lost, corrupt.
  Result<ObjectView> get(std::string_view key, Duration timeout = Duration::zero(),
                         const Interrupted& interrupted = {});
  // One answer a key, in order; the deadline is common.
  std::vector<Result<ObjectView>> get_many(std::span<const std::string> keys,
                                           Duration timeout = Duration::zero());
  Result<bool> exists(std::string_view key);

  // Ok also if there is none. With a generation, only that one is erased.
  Status erase(std::string_view key, uint64_t generation = 0);
  // The object goes `ttl` from now; negative: never. Errors: not_found.
  Status expire(std::string_view key, Duration ttl);

  Result<StoreUsage> usage();
  // Ok, or why operations fail just now, without waiting for the store.
  Status health();
  const StoreOptions& options() const noexcept;
  std::string metrics_text() const;

  // Views stay valid. Idempotent.
  Status close(Duration timeout = std::chrono::seconds(5));

 private:
  ObjectStore(StoreOptions options, std::shared_ptr<store::Backend> backend);

  const StoreOptions options_;
  const std::shared_ptr<store::Backend> backend_;
  const std::shared_ptr<store::StoreMetrics> metrics_;
};

}  // namespace stagelink
