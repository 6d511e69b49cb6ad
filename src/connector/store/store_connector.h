#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "connector/store/connector_metrics.h"
#include "connector/store/edge_window.h"
#include "connector/store/options.h"
#include "stagelink/object_store.h"
#include "stagelink/result.h"

namespace stagelink::store_connector {

// Names an object of an edge: what is put under an id by stage `from` for stage `to`.
struct ObjectName {
  std::string_view id;
  std::string_view from;
  std::string_view to;

  std::string key() const;   // "{id}:{from}_{to}"
  std::string edge() const;  // "{from}->{to}"
};

// Hands payloads from stage to stage through an object store: the sender puts each under a key that
// the receiver can make by itself, so that nothing else need pass between them.
//
// An object that was got is deleted with its generation, so that one that was put again meanwhile
// stays; one that nobody gets goes by its time. Whoever decodes payloads ends a get with
// consumed().
//
// Thread-safety: all methods may run at the same time, close() too, which ends what waits.
class StoreConnector {
 public:
  // Errors: those of ObjectStore::open.
  static Result<std::unique_ptr<StoreConnector>> create(const ConnectorOptions& options);
  ~StoreConnector();
  StoreConnector(const StoreConnector&) = delete;
  StoreConnector& operator=(const StoreConnector&) = delete;

  // Writes the whole object into its memory.
  using Fill = std::function<Status(std::span<const std::span<std::byte>> pieces)>;
  // Waits for the window of the edge, for its turn and for space, at most put_timeout. An object of
  // the same name is replaced. Errors: those of ObjectStore::create and of `fill`; timed_out;
  // invalid_state (closed). Each is logged and counted once.
  Status put(const ObjectName& name, uint64_t size, const Fill& fill,
             const Interrupted& interrupted = {});

  // A put that could not begin, for its payload has no form.
  void refuse(const ObjectName& name, std::string_view why);
  // A get whose key cannot be.
  void refuse_get(std::string_view why);

  // What a get gives: the view, or why there is none, which is counted; a miss is not logged, a
  // wait in vain is.
  Result<ObjectView> get(const ObjectName& name, Duration timeout,
                         const Interrupted& interrupted = {});
  // Ends a get: how decoding went. The object is deleted if consumed ones are to be, and one that
  // cannot be decoded always, for it never can.
  void consumed(const ObjectName& name, const ObjectView& view, const Status& decoded,
                ConnectorMetrics::Clock::duration decoding);

  // Deletes what was put under an id, or one object by its whole key.
  void cleanup(std::string_view id);
  void cleanup(const ObjectName& name);
  // Forgets what others have consumed. How many.
  size_t reap_consumed();
  size_t unconsumed() const;

  ObjectStore& store() noexcept { return *store_; }
  const ConnectorOptions& options() const noexcept { return options_; }
  const ConnectorMetrics& metrics() const noexcept { return metrics_; }
  // Prometheus text: the connector's and, behind it, the store's.
  std::string metrics_text() const;

  bool closed() const noexcept { return closed_.load(); }
  // Idempotent; views that were given stay. Objects stay in the store.
  Status close(Duration timeout = std::chrono::seconds(5));

 private:
  StoreConnector(const ConnectorOptions& options, std::unique_ptr<ObjectStore> store);

  Status write(const std::string& key, uint64_t size, const Fill& fill, const PutOptions& terms);
  void erase(const std::string& key, uint64_t generation);

  const ConnectorOptions options_;
  std::unique_ptr<ObjectStore> store_;
  EdgeWindow window_;
  ConnectorMetrics metrics_;
  std::atomic<bool> closed_{false};
};

}  // namespace stagelink::store_connector
