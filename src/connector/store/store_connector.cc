#include "connector/store/store_connector.h"

#include <utility>

#include <fmt/format.h>

#include "base/deadline.h"
#include "base/log.h"
#include "base/text.h"

namespace stagelink::store_connector {
namespace {

constexpr std::string_view kConnectorLog = "store connector";
constexpr size_t kReapedAtOnce = 64;

std::string shown(const std::string& key) { return escape_control(key.substr(0, 200)); }

// What nobody need be told of, or what the store has said already.
bool is_silent(const Status& status) noexcept {
  return status.reason() == Reason::kNotFound || status.reason() == Reason::kCancelled ||
         status.scope() == Scope::kPeer || status.scope() == Scope::kEngine;
}

std::string place_of(const StoreOptions& store) {
  if (store.backend == StoreBackend::kShm) return "the arena " + store.arena.name;
  return fmt::format("the worker {}:{}", store.yuanrong.host, store.yuanrong.port);
}

// Measures one phase after the other.
class PhaseClock {
 public:
  explicit PhaseClock(ConnectorMetrics& metrics)
      : metrics_(metrics), since_(ConnectorMetrics::Clock::now()) {}
  void ends(Phase phase) {
    const auto now = ConnectorMetrics::Clock::now();
    metrics_.observe(phase, now - since_);
    since_ = now;
  }

 private:
  ConnectorMetrics& metrics_;
  ConnectorMetrics::Clock::time_point since_;
};

}  // namespace

std::string ObjectName::key() const { return fmt::format("{}:{}_{}", id, from, to); }
std::string ObjectName::edge() const { return fmt::format("{}->{}", from, to); }

Result<std::unique_ptr<StoreConnector>> StoreConnector::create(const ConnectorOptions& options) {
  SL_ASSIGN(auto store, ObjectStore::open(options.store));
  return std::unique_ptr<StoreConnector>(new StoreConnector(options, std::move(store)));
}

StoreConnector::StoreConnector(const ConnectorOptions& options, std::unique_ptr<ObjectStore> store)
    : options_(options),
      store_(std::move(store)),
      window_({options.window_size, options.max_inflight}, [this](const std::string& key) {
        const Result<bool> there = store_->exists(key);
        return !there.ok() || *there;
      }) {}

StoreConnector::~StoreConnector() { (void)close(); }

Status StoreConnector::put(const ObjectName& name, uint64_t size, const Fill& fill,
                           const Interrupted& interrupted) {
  const std::string key = name.key();
  const std::string edge = name.edge();
  const Deadline deadline = Deadline::in(options_.put_timeout);
  PhaseClock clock(metrics_);
  Status status = window_.enter(edge, deadline);
  clock.ends(Phase::kPutTurn);
  if (status.ok()) {
    status = write(key, size, fill, {deadline.left(), Duration::zero(), interrupted});
    window_.leave(edge, name.id, key, status.ok());
  }
  metrics_.count_put(status.reason(), status.ok() ? size : 0);
  if (!status.ok() && !is_silent(status)) {
    log(LogLevel::kWarning, kConnectorLog,
        fmt::format("put of {} ({} bytes) into {} failed: {}", shown(key), size,
                    place_of(options_.store), status.to_string()));
  }
  return status;
}

Status StoreConnector::write(const std::string& key, uint64_t size, const Fill& fill,
                             const PutOptions& terms) {
  PhaseClock clock(metrics_);
  auto writer = store_->create(key, size, terms);
  clock.ends(Phase::kPutSpace);
  if (!writer.ok()) return writer.status();
  SL_TRY(fill(writer->pieces()));
  clock.ends(Phase::kPutWrite);
  const Status status = writer->seal();
  clock.ends(Phase::kPutSeal);
  return status;
}

void StoreConnector::refuse(const ObjectName& name, std::string_view why) {
  metrics_.count_put(Reason::kUnsupported, 0);
  log(LogLevel::kWarning, kConnectorLog,
      fmt::format("{} was not put: {}", shown(name.key()), escape_control(why)));
}

void StoreConnector::refuse_get(std::string_view why) {
  metrics_.count_get(Reason::kInvalidArgument, 0);
  log(LogLevel::kWarning, kConnectorLog, fmt::format("a get failed: {}", escape_control(why)));
}

Result<ObjectView> StoreConnector::get(const ObjectName& name, Duration timeout,
                                       const Interrupted& interrupted) {
  const std::string key = name.key();
  PhaseClock clock(metrics_);
  auto view = store_->get(key, timeout, interrupted);
  if (view.ok()) {
    clock.ends(Phase::kGetWait);
    return view;
  }
  metrics_.count_get(closed() ? Reason::kClosed : view.status().reason(), 0);
  if (!is_silent(view.status())) {
    log(LogLevel::kWarning, kConnectorLog,
        fmt::format("no object {} in {} within {}: {}", shown(key), place_of(options_.store),
                    format_duration(timeout), view.status().to_string()));
  }
  return view;
}

void StoreConnector::consumed(const ObjectName& name, const ObjectView& view, const Status& decoded,
                              ConnectorMetrics::Clock::duration decoding) {
  metrics_.observe(Phase::kGetDecode, decoding);
  metrics_.count_get(decoded.reason(), decoded.ok() ? view.bytes().size() : 0);
  const std::string key = name.key();
  if (!decoded.ok()) {
    log(LogLevel::kWarning, kConnectorLog,
        fmt::format("{} ({} bytes) cannot be decoded and is deleted: {}", shown(key),
                    view.bytes().size(), decoded.to_string()));
  } else if (!options_.delete_consumed) {
    return;
  }
  PhaseClock clock(metrics_);
  erase(key, view.generation());
  clock.ends(Phase::kGetDelete);
}

void StoreConnector::erase(const std::string& key, uint64_t generation) {
  const Status status = store_->erase(key, generation);
  if (status.ok() || closed()) return;
  log(LogLevel::kWarning, kConnectorLog,
      fmt::format("{} was not deleted and goes by its time: {}", shown(key), status.to_string()));
}

void StoreConnector::cleanup(std::string_view id) {
  for (const std::string& key : window_.take(id)) erase(key, 0);
  // A whole key, from whoever has it.
  if (id.find(':') != std::string_view::npos) {
    window_.forget(std::string(id));
    erase(std::string(id), 0);
  }
}

void StoreConnector::cleanup(const ObjectName& name) {
  window_.forget(name.key());
  erase(name.key(), 0);
}

size_t StoreConnector::reap_consumed() { return closed() ? 0 : window_.reap(kReapedAtOnce); }

size_t StoreConnector::unconsumed() const { return window_.size(); }

std::string StoreConnector::metrics_text() const {
  const std::string labels =
      fmt::format("stage=\"{}\",backend=\"{}\"", options_.stage_id,
                  options_.store.backend == StoreBackend::kShm ? "shm" : "yuanrong");
  return metrics_.text(labels) + store_->metrics_text();
}

Status StoreConnector::close(Duration timeout) {
  closed_.store(true);
  window_.close();
  return store_->close(timeout);
}

}  // namespace stagelink::store_connector
