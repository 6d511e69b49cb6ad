#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "stagelink/object_store.h"
#include "stagelink/result.h"
#include "stagelink/status.h"

namespace stagelink::store {

// What stands behind an ObjectWriter. Destroying it aborts a put that is not sealed. It may outlive
// its store, and answers invalid_state (closed) then; in a forked child it touches nothing.
//
// Thread-safety: one thread at a time.
class WriterState {
 public:
  virtual ~WriterState() = default;
  WriterState(const WriterState&) = delete;
  WriterState& operator=(const WriterState&) = delete;

  // The memory of the object, in order; together of size() bytes. Stays as it is until abort() or
  // destruction; nobody writes to it after seal().
  virtual std::span<const std::span<std::byte>> pieces() const noexcept = 0;
  virtual uint64_t size() const noexcept = 0;
  virtual Status seal() = 0;
  virtual void abort() noexcept = 0;
  virtual uint64_t generation() const noexcept = 0;  // 0 before seal().

 protected:
  WriterState() = default;
};

// What stands behind an ObjectView: a lease. Destroying it ends the lease. May outlive its store.
//
// Thread-safety: all const methods may run at the same time.
class ViewState {
 public:
  virtual ~ViewState() = default;
  ViewState(const ViewState&) = delete;
  ViewState& operator=(const ViewState&) = delete;

  virtual std::span<const std::byte> bytes() const noexcept = 0;
  virtual uint64_t generation() const noexcept = 0;
  virtual Status valid() const = 0;

 protected:
  ViewState() = default;
};

using WriterPtr = std::unique_ptr<WriterState>;
using ViewPtr = std::unique_ptr<ViewState>;

// When a put must be done and how long its object lives.
struct PutTerms {
  Deadline deadline;
  Duration ttl;  // Zero or negative: for ever. The store's default is applied already.
};

// How a get waits. A zero timeout looks once and answers not_found; otherwise a get waits for the
// put until the deadline and answers timed_out.
struct GetTerms {
  Deadline deadline;
  bool waits;
};

// One way to keep objects. ObjectStore checks keys (1 to 1024 bytes), applies defaults and counts;
// a backend does the rest, with the outcomes that stagelink/object_store.h names, and logs a
// failure at its origin (not a miss, a timeout of a get, or a full store: those are states).
//
// Thread-safety: all methods may run at the same time, close() too.
class Backend {
 public:
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  virtual Result<WriterPtr> create(std::string_view key, uint64_t size, const PutTerms& terms) = 0;
  virtual Result<ViewPtr> get(std::string_view key, const GetTerms& terms) = 0;
  // By default one key after the other, with the common deadline.
  virtual std::vector<Result<ViewPtr>> get_many(std::span<const std::string> keys,
                                                const GetTerms& terms);
  virtual Result<bool> exists(std::string_view key) = 0;
  virtual Status erase(std::string_view key, uint64_t generation) = 0;  // 0: any.
  virtual Status expire(std::string_view key, Duration ttl) = 0;        // Negative: never.
  virtual Result<StoreUsage> usage() = 0;
  virtual Status health() = 0;
  // Prometheus text of what only this backend has. `labels` goes between the braces of each sample:
  // store="default",backend="shm".
  virtual std::string metrics_text(std::string_view labels) = 0;
  virtual Status close(const Deadline& deadline) = 0;  // Idempotent.

 protected:
  Backend() = default;
};

}  // namespace stagelink::store
