#include "connector/encoder_cache/registry/publisher.h"

#include <algorithm>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <pthread.h>

#include "base/log.h"
#include "base/mutex.h"
#include "base/random.h"
#include "connector/encoder_cache/registry/messages.h"

namespace stagelink::encoder_cache {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Duration kFirstPause = std::chrono::milliseconds(50);
constexpr Duration kLongestPause = std::chrono::seconds(2);
// Hashes in one request: short ones leave others their turn.
constexpr size_t kBatch = 256;

}  // namespace

class RegistryPublisher::Core final {
 public:
  Core(const PublisherOptions& options, std::unique_ptr<RegistryClient> client)
      : options_(options), client_(std::move(client)) {
    terms_.lease = random_instance_id();
    terms_.lease_ttl = options.lease_ttl;
    terms_.producer_zmq = options.producer_zmq;
  }

  void start() {
    thread_ = std::thread([this] { run(); });
  }
  Status publish(PublishedItem item);
  Status unpublish(std::string_view mm_hash);
  Status flush(const Deadline& deadline);
  void close(const Deadline& deadline);
  uint64_t entries() const;
  PublisherCounts counts() const;

 private:
  struct Batch {
    std::vector<PublishedItem> publish;
    std::vector<std::string> unpublish;
  };

  void run();
  bool wait_for_work();
  Batch take_batch() SL_REQUIRES(mutex_);
  Status tell(const Batch& batch);
  Status tell_publish(const std::vector<PublishedItem>& items);
  Status renew();
  void tell_all_again();
  void settle(const Batch& batch, const Status& status);
  Deadline request_deadline() const;

  const PublisherOptions options_;
  PublishTerms terms_;
  const std::unique_ptr<RegistryClient> client_;  // Of the thread, but interrupt().

  mutable Mutex mutex_;
  CondVar changed_;
  // All that this producer has, and which of the hashes the registry has not been told of yet:
  // those that are not among the items are to be unpublished.
  std::unordered_map<std::string, PublishedItem> items_ SL_GUARDED_BY(mutex_);
  std::unordered_set<std::string> untold_ SL_GUARDED_BY(mutex_);
  size_t telling_ SL_GUARDED_BY(mutex_) = 0;  // Hashes of the request that runs.
  Status failing_ SL_GUARDED_BY(mutex_);      // The last request's failure.
  PublisherCounts counts_ SL_GUARDED_BY(mutex_);
  bool closing_ SL_GUARDED_BY(mutex_) = false;
  bool closed_ SL_GUARDED_BY(mutex_) = false;
  bool told_once_ = false;                     // Of the thread, as are those below.
  Clock::time_point renew_at_ = Clock::now();  // Not before anything has been told.
  Clock::time_point pause_until_ = Clock::now();
  Duration pause_ = kFirstPause;
  std::thread thread_;
};

Status RegistryPublisher::Core::publish(PublishedItem item) {
  SL_TRY(check_mm_hash(item.mm_hash));
  SL_TRY(check_embedding(item.info));
  MutexLock lock(mutex_);
  if (closing_) return Status(Reason::kClosed, "the publisher is closed");
  const auto at = items_.find(item.mm_hash);
  // What is to be unpublished counts too: the registry still has it.
  if (at == items_.end() && items_.size() + untold_.size() >= 2 * options_.max_entries) {
    return Status(Reason::kLimit, "more entries are to be unpublished than the registry takes");
  }
  if (at == items_.end() && items_.size() >= options_.max_entries) {
    return Status(Reason::kLimit,
                  fmt::format("{} entries are published (max_entries)", items_.size()));
  }
  std::string mm_hash = item.mm_hash;
  items_.insert_or_assign(mm_hash, std::move(item));
  untold_.insert(std::move(mm_hash));
  changed_.notify_all();
  return {};
}

Status RegistryPublisher::Core::unpublish(std::string_view mm_hash) {
  MutexLock lock(mutex_);
  if (closing_) return Status(Reason::kClosed, "the publisher is closed");
  if (items_.erase(std::string(mm_hash)) == 0) return {};
  untold_.emplace(mm_hash);
  changed_.notify_all();
  return {};
}

Status RegistryPublisher::Core::flush(const Deadline& deadline) {
  MutexLock lock(mutex_);
  while (!untold_.empty() || telling_ > 0) {
    if (closed_) return Status(Reason::kClosed, "the publisher is closed");
    if (changed_.wait_until(mutex_, deadline)) continue;
    return Status(
        Reason::kTimedOut,
        fmt::format("the registry has not been told of {} hashes: {}", untold_.size() + telling_,
                    failing_.ok() ? "it is slow" : failing_.to_string()));
  }
  return {};
}

uint64_t RegistryPublisher::Core::entries() const {
  MutexLock lock(mutex_);
  return items_.size();
}

PublisherCounts RegistryPublisher::Core::counts() const {
  MutexLock lock(mutex_);
  return counts_;
}

Deadline RegistryPublisher::Core::request_deadline() const {
  return Deadline::in(options_.request_timeout);
}

void RegistryPublisher::Core::run() {
  ::pthread_setname_np(::pthread_self(), "sl-publisher");
  while (wait_for_work()) {
    Batch batch;
    {
      MutexLock lock(mutex_);
      batch = take_batch();
    }
    const bool renewal = batch.publish.empty() && batch.unpublish.empty();
    const Status status = renewal ? renew() : tell(batch);
    settle(batch, status);
  }
}

// False: closed.
bool RegistryPublisher::Core::wait_for_work() {
  MutexLock lock(mutex_);
  for (;;) {
    if (closing_) return false;
    const auto now = Clock::now();
    Clock::time_point until = told_once_ ? renew_at_ : Clock::time_point::max();
    if (!untold_.empty()) until = now;
    until = std::max(until, pause_until_);
    if (until <= now) return true;
    if (until == Clock::time_point::max()) {
      changed_.wait(mutex_);
    } else {
      changed_.wait_until(mutex_, Deadline::after(now, until - now));
    }
  }
}

RegistryPublisher::Core::Batch RegistryPublisher::Core::take_batch() {
  Batch batch;
  while (!untold_.empty() && batch.publish.size() + batch.unpublish.size() < kBatch) {
    auto node = untold_.extract(untold_.begin());
    const auto at = items_.find(node.value());
    if (at == items_.end()) {
      batch.unpublish.push_back(std::move(node.value()));
    } else {
      batch.publish.push_back(at->second);
    }
  }
  telling_ = batch.publish.size() + batch.unpublish.size();
  return batch;
}

Status RegistryPublisher::Core::tell(const Batch& batch) {
  if (!batch.unpublish.empty() && told_once_) {
    auto gone = client_->unpublish(terms_.lease, batch.unpublish, request_deadline());
    if (!gone.ok()) return gone.status();
  }
  return batch.publish.empty() ? Status() : tell_publish(batch.publish);
}

Status RegistryPublisher::Core::tell_publish(const std::vector<PublishedItem>& items) {
  auto outcome = client_->publish(terms_, items, request_deadline());
  if (!outcome.ok()) return outcome.status();
  renew_at_ = Clock::now() + options_.lease_ttl / 3;
  uint64_t refused = 0;
  for (const Status& status : outcome->items) {
    if (status.ok()) continue;
    ++refused;
    log_failure("registry entry refused", status);
  }
  {
    MutexLock lock(mutex_);
    counts_.published += items.size() - refused;
    counts_.refused += refused;
  }
  if (outcome->fresh && told_once_) tell_all_again();
  told_once_ = true;
  return {};
}

Status RegistryPublisher::Core::renew() {
  auto renewed = client_->renew(terms_.lease, options_.lease_ttl, request_deadline());
  if (!renewed.ok()) return renewed.status();
  renew_at_ = Clock::now() + options_.lease_ttl / 3;
  if (!renewed->known) tell_all_again();
  return {};
}

// The registry has been restarted, or our lease ended while it could not be reached.
void RegistryPublisher::Core::tell_all_again() {
  MutexLock lock(mutex_);
  for (const auto& [mm_hash, item] : items_) untold_.insert(mm_hash);
  ++counts_.republished;
  log(LogLevel::kInfo, "registry",
      fmt::format("does not know this producer: {} entries are published again", items_.size()));
}

void RegistryPublisher::Core::settle(const Batch& batch, const Status& status) {
  MutexLock lock(mutex_);
  telling_ = 0;
  if (status.ok()) {
    if (!failing_.ok()) log(LogLevel::kWarning, "registry", "answers again");
    pause_ = kFirstPause;
  } else {
    for (const PublishedItem& item : batch.publish) untold_.insert(item.mm_hash);
    for (const std::string& mm_hash : batch.unpublish) untold_.insert(mm_hash);
    if (failing_.ok()) log_failure("registry", status);
    ++counts_.failures;
    pause_until_ = Clock::now() + pause_;
    pause_ = std::min(2 * pause_, kLongestPause);
  }
  failing_ = status;
  changed_.notify_all();
}

void RegistryPublisher::Core::close(const Deadline& deadline) {
  {
    MutexLock lock(mutex_);
    if (closing_) {
      while (!closed_ && changed_.wait_until(mutex_, deadline)) continue;
      return;
    }
    closing_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();  // At most one request's time.
  if (told_once_) {
    const Deadline by = Deadline::earlier(deadline, request_deadline());
    auto gone = client_->unpublish_all(terms_.lease, by);
    if (!gone.ok()) log_failure("registry: taking back all entries", gone.status());
  }
  MutexLock lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

RegistryPublisher::RegistryPublisher(std::unique_ptr<Core> core) noexcept
    : core_(std::move(core)) {}

RegistryPublisher::~RegistryPublisher() { core_->close(Deadline::in(std::chrono::seconds(1))); }

Result<std::unique_ptr<RegistryPublisher>> RegistryPublisher::start(
    const PublisherOptions& options) {
  SL_TRY(check_producer_address(options.producer_zmq));
  if (options.lease_ttl < std::chrono::milliseconds(10)) {
    return Status(Reason::kInvalidArgument, "lease_ttl: at least 10ms is expected");
  }
  SL_ASSIGN(auto client, RegistryClient::create(options.registry));
  auto core = std::make_unique<Core>(options, std::move(client));
  core->start();
  return std::unique_ptr<RegistryPublisher>(new RegistryPublisher(std::move(core)));
}

Status RegistryPublisher::publish(PublishedItem item) { return core_->publish(std::move(item)); }

Status RegistryPublisher::unpublish(std::string_view mm_hash) { return core_->unpublish(mm_hash); }

Status RegistryPublisher::flush(const Deadline& deadline) { return core_->flush(deadline); }

uint64_t RegistryPublisher::entries() const { return core_->entries(); }

PublisherCounts RegistryPublisher::counts() const { return core_->counts(); }

void RegistryPublisher::close(const Deadline& deadline) { core_->close(deadline); }

}  // namespace stagelink::encoder_cache
