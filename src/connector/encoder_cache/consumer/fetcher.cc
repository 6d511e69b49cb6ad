#include "connector/encoder_cache/consumer/fetcher.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>

#include "base/log.h"
#include "base/text.h"
#include "connector/pull/metrics.h"

namespace stagelink::encoder_cache {
namespace {

constexpr size_t kQuick = 0;
constexpr size_t kPatient = 1;
constexpr size_t kLookAtOnce = 1024;
constexpr size_t kLoadAtOnce = 64;
// One waiting query; those that come meanwhile wait for the next.
constexpr Duration kOneWait = std::chrono::milliseconds(500);
constexpr Duration kAfterFailure = std::chrono::milliseconds(200);

}  // namespace

// One wanted hash.
struct Fetcher::Item {
  Item(std::string hash, const Deadline& look_by, const Deadline& load_by)
      : mm_hash(std::move(hash)), look_until(look_by), until(load_by) {}
  const std::string mm_hash;
  const Deadline look_until;  // Until somebody has published it.
  const Deadline until;       // For everything.
  std::atomic<bool> dropped{false};

  // Under the fetcher's mutex.
  FetchState state = FetchState::kLooking;
  Status why;
  std::set<std::string> transfers;  // That bring it, or have brought it.
  std::vector<ProducerEntry> producers;
  ProducerEntry place;
};

Result<std::unique_ptr<Fetcher>> Fetcher::create(const CacheOptions& options, uint32_t readers) {
  if (options.remote_registry_url.empty() && !is_push(options)) {
    return Status(Reason::kInvalidArgument,
                  "remote_registry_url: a consumer has to know where the registry is");
  }
  const auto hook = std::make_shared<pull::ForeignHook>();
  SL_ASSIGN(auto consumer,
            Consumer::create(options, /*may_hand_on=*/true, pull::ForeignHook::messages(hook)));
  std::unique_ptr<Fetcher> fetcher(new Fetcher(options, readers, std::move(consumer), hook));
  SL_TRY(fetcher->start());
  return fetcher;
}

Fetcher::Fetcher(const CacheOptions& options, uint32_t readers, std::unique_ptr<Consumer> consumer,
                 std::shared_ptr<pull::ForeignHook> hook)
    : options_(options),
      readers_(readers),
      consumer_(std::move(consumer)),
      hook_(std::move(hook)) {}

Status Fetcher::start() {
  if (is_push(options_)) {
    desk_ =
        std::make_unique<PushDesk>(*consumer_, [this](const PushEvent& event) { pushed(event); });
    hook_->set([desk = desk_.get()](std::span<const std::byte> message,
                                    const pull::ForeignAnswer& answer) {
      return desk->take(message, answer);
    });
    return {};
  }
  for (auto& client : clients_) {
    RegistryClientOptions registry;
    registry.url = options_.remote_registry_url;
    registry.secret_file = options_.secret_file;
    SL_ASSIGN(client, RegistryClient::create(registry));
  }
  threads_.emplace_back([this] { look_up(/*is_patient=*/false); });
  threads_.emplace_back([this] { look_up(/*is_patient=*/true); });
  for (uint32_t i = 0; i < options_.load_threads; ++i) {
    threads_.emplace_back([this] { load_queued(); });
  }
  return {};
}

Fetcher::~Fetcher() { close(); }

void Fetcher::want(std::string_view mm_hash) {
  {
    MutexLock lock(mutex_);
    if (items_.contains(std::string(mm_hash))) return;
    auto item = std::make_shared<Item>(std::string(mm_hash), Deadline::in(options_.registry_wait),
                                       Deadline::in(options_.pull_timeout));
    Status status = check_mm_hash(mm_hash);
    if (status.ok() && (items_.size() >= options_.max_entries || stopping_)) {
      status = Status(Reason::kBusy, "too many embeddings are wanted at a time (max_entries)");
    }
    if (!status.ok()) {
      // A table that is full remembers no more; who looks finds `unknown` and encodes.
      if (items_.size() >= options_.max_entries || stopping_) return;
      item->state = FetchState::kMissing;
      item->why = std::move(status);
      items_.emplace(mm_hash, std::move(item));
      return;
    }
    items_.emplace(mm_hash, item);
    to_look_[kQuick].push_back(std::move(item));
  }
  work_.notify_all();
}

FetchView Fetcher::look(std::string_view mm_hash) const {
  MutexLock lock(mutex_);
  const auto found = items_.find(std::string(mm_hash));
  if (found == items_.end()) return {};
  Item& item = *found->second;
  if (item.state == FetchState::kExpected && item.until.passed()) {
    item.state = FetchState::kMissing;
    item.why = Status(Reason::kTimedOut, fmt::format("no push has brought it in {}",
                                                     format_duration(options_.push_wait_timeout)));
  }
  return {item.state, item.why, item.place};
}

void Fetcher::drop(std::string_view mm_hash) {
  std::shared_ptr<Item> item;
  std::set<std::string> transfers;  // Taken from it: an event of one of them may be on its way.
  bool is_ready = false;
  {
    MutexLock lock(mutex_);
    const auto found = items_.find(std::string(mm_hash));
    if (found == items_.end()) return;
    item = std::move(found->second);
    items_.erase(found);
    item->dropped.store(true);
    transfers.swap(item->transfers);
    is_ready = item->state == FetchState::kReady;
  }
  for (const std::string& transfer : transfers) desk_->refuse(transfer);
  if (is_ready) consumer_->take_back(mm_hash, item->place.generation);
}

void Fetcher::handed_on(std::string_view mm_hash) {
  std::set<std::string> transfers;
  {
    MutexLock lock(mutex_);
    const auto found = items_.find(std::string(mm_hash));
    if (found == items_.end()) return;
    transfers.swap(found->second->transfers);
    items_.erase(found);
  }
  for (const std::string& transfer : transfers) desk_->release(transfer);
}

FetcherUsage Fetcher::usage() const {
  FetcherUsage usage;
  MutexLock lock(mutex_);
  usage.wanted = items_.size();
  for (const auto& [hash, item] : items_) {
    if (item->state == FetchState::kLooking) ++usage.looking;
    if (item->state == FetchState::kExpected) ++usage.expected;
    if (item->state == FetchState::kLoading) ++usage.loading;
    if (item->state == FetchState::kReady) ++usage.ready;
  }
  return usage;
}

std::string Fetcher::metrics_text() const {
  std::string out = consumer_->metrics_text();
  const FetcherUsage usage = this->usage();
  pull::append_sample(out, "stagelink_ec_wanted", "Embeddings that requests wait for.", "gauge",
                      "role=\"consumer\"", static_cast<double>(usage.wanted));
  if (desk_ != nullptr) desk_->append_metrics(out, "role=\"consumer\"");
  return out;
}

void Fetcher::close(Duration timeout) {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    for (const auto& [hash, item] : items_) item->dropped.store(true);
    items_.clear();
    to_look_[kQuick].clear();
    to_look_[kPatient].clear();
    to_load_.clear();
  }
  work_.notify_all();
  for (auto& client : clients_) {
    if (client != nullptr) client->interrupt();
  }
  hook_->set(nullptr);
  (void)consumer_->close(timeout);
  if (desk_ != nullptr) desk_->close();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

// --- At the registry ---

void Fetcher::look_up(bool is_patient) {
  ::pthread_setname_np(::pthread_self(), is_patient ? "sl-ec-wait" : "sl-ec-look");
  RegistryClient& client = *clients_[is_patient ? kPatient : kQuick];
  while (true) {
    const Items items = take_to_look(is_patient);
    if (items.empty()) return;
    query(client, items, is_patient);
  }
}

// Empty: it is over.
Fetcher::Items Fetcher::take_to_look(bool is_patient) {
  MutexLock lock(mutex_);
  Items& queue = to_look_[is_patient ? kPatient : kQuick];
  Items taken;
  while (!stopping_ && taken.empty()) {
    while (!stopping_ && queue.empty()) work_.wait(mutex_);
    const size_t count = std::min(queue.size(), kLookAtOnce);
    for (size_t i = 0; i < count; ++i) {
      if (!queue[i]->dropped.load()) taken.push_back(std::move(queue[i]));
    }
    queue.erase(queue.begin(), queue.begin() + static_cast<ptrdiff_t>(count));
  }
  if (stopping_) taken.clear();
  return taken;
}

void Fetcher::query(RegistryClient& client, const Items& items, bool is_patient) {
  std::vector<std::string> hashes;
  for (const auto& item : items) hashes.push_back(item->mm_hash);
  const Duration wait = is_patient ? kOneWait : Duration::zero();
  auto answer = client.query(hashes, Deadline::in(options_.registry_timeout + wait), wait);
  if (!answer.ok()) log_failure("encoder cache registry", answer.status());
  for (size_t i = 0; i < items.size(); ++i) {
    if (!answer.ok()) {
      not_found(items[i], answer.status(), is_patient);
    } else if ((*answer)[i].empty()) {
      not_found(items[i], Status(Reason::kNotFound, "nobody has published it"), is_patient);
    } else {
      found(items[i], std::move((*answer)[i]));
    }
  }
  // One of the seed answers at once, however long it was asked to wait.
  if (is_patient && (!answer.ok() || client.is_of_seed())) {
    MutexLock lock(mutex_);
    if (!stopping_) work_.wait_until(mutex_, Deadline::in(kAfterFailure));
  }
}

void Fetcher::found(const std::shared_ptr<Item>& item, std::vector<ProducerEntry> producers) {
  {
    MutexLock lock(mutex_);
    if (stopping_ || item->dropped.load()) return;
    item->producers = std::move(producers);
    item->state = FetchState::kLoading;
    to_load_.push_back(item);
  }
  work_.notify_all();
}

void Fetcher::not_found(const std::shared_ptr<Item>& item, const Status& why, bool is_patient) {
  {
    MutexLock lock(mutex_);
    if (stopping_ || item->dropped.load()) return;
    if (item->look_until.passed()) {
      item->state = FetchState::kMissing;
      item->why = why;
      return;
    }
    to_look_[kPatient].push_back(item);
  }
  if (!is_patient) work_.notify_all();
}

// --- Pushed ---

void Fetcher::expect(std::string_view mm_hash, const std::string& transfer_id) {
  if (desk_ == nullptr || !check_mm_hash(mm_hash).ok() || !check_transfer_id(transfer_id).ok()) {
    return;
  }
  const auto item = add_expected(std::string(mm_hash), transfer_id);
  if (item == nullptr) return;
  desk_->expect(transfer_id);
  // Whatever has come, or has failed, before it was wanted here.
  if (desk_->find(item->mm_hash).has_value()) {
    take_pushed(item);
  } else if (const PushView view = desk_->look(transfer_id); view.state == PushState::kEnded) {
    lost(*item, transfer_id, view.why);
  }
}

void Fetcher::refuse(const std::string& transfer_id) {
  if (desk_ != nullptr && check_transfer_id(transfer_id).ok()) desk_->refuse(transfer_id);
}

// Null: the table is full.
std::shared_ptr<Fetcher::Item> Fetcher::add_expected(const std::string& mm_hash,
                                                     const std::string& transfer_id) {
  MutexLock lock(mutex_);
  auto found = items_.find(mm_hash);
  if (found == items_.end()) {
    if (items_.size() >= options_.max_entries || stopping_) return nullptr;
    const Deadline until = Deadline::in(options_.push_wait_timeout);
    found = items_.emplace(mm_hash, std::make_shared<Item>(mm_hash, until, until)).first;
    found->second->state = FetchState::kExpected;
  }
  Item& item = *found->second;
  item.transfers.insert(transfer_id);
  if (item.state == FetchState::kMissing && !item.until.passed())
    item.state = FetchState::kExpected;
  return found->second;
}

void Fetcher::pushed(const PushEvent& event) {
  std::shared_ptr<Item> item;
  {
    MutexLock lock(mutex_);
    const auto found = items_.find(event.mm_hash);
    if (found == items_.end()) return;
    item = found->second;
  }
  if (event.outcome.ok()) {
    take_pushed(item);
  } else {
    lost(*item, event.transfer_id, event.outcome);
  }
}

void Fetcher::take_pushed(const std::shared_ptr<Item>& item) {
  auto embedding = desk_->find(item->mm_hash);
  {
    MutexLock lock(mutex_);
    if (!embedding.has_value() || item->state != FetchState::kExpected) return;
    item->state = FetchState::kLoading;
  }
  finish(*item, *std::move(embedding));
}

// What no transfer brings any more is missing at once.
void Fetcher::lost(Item& item, const std::string& transfer_id, const Status& why) {
  {
    MutexLock lock(mutex_);
    if (item.transfers.erase(transfer_id) == 0) return;
    if (item.transfers.empty() && item.state == FetchState::kExpected) {
      item.state = FetchState::kMissing;
      item.why = why;
    }
  }
  desk_->heard(transfer_id);
}

// --- From the producers ---

void Fetcher::load_queued() {
  ::pthread_setname_np(::pthread_self(), "sl-ec-load");
  while (true) {
    Items items;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && to_load_.empty()) work_.wait(mutex_);
      if (stopping_) return;
      while (!to_load_.empty() && items.size() < kLoadAtOnce) {
        items.push_back(std::move(to_load_.front()));
        to_load_.pop_front();
      }
    }
    load(items);
  }
}

void Fetcher::load(const Items& items) {
  std::vector<LoadRequest> requests;
  Deadline deadline = items.front()->until;
  for (const auto& item : items) {
    deadline = Deadline::earlier(deadline, item->until);
    requests.push_back({item->mm_hash, item->producers, {}});
  }
  // What others still want goes on; once nobody wants any of it, it ends.
  const auto nobody_wants = [&items] {
    return std::all_of(items.begin(), items.end(),
                       [](const auto& item) { return item->dropped.load(); });
  };
  auto outcomes = consumer_->load(requests, {deadline.left(), nobody_wants});
  for (size_t i = 0; i < items.size(); ++i) finish(*items[i], std::move(outcomes[i]));
}

void Fetcher::finish(Item& item, Result<Embedding> outcome) {
  Result<ProducerEntry> place = outcome.ok() ? consumer_->hand_on(*outcome, readers_)
                                             : Result<ProducerEntry>(outcome.status());
  {
    MutexLock lock(mutex_);
    if (!item.dropped.load()) {
      item.state = place.ok() ? FetchState::kReady : FetchState::kMissing;
      if (place.ok()) {
        item.place = *place;
      } else {
        item.why = place.status();
      }
      return;
    }
  }
  if (place.ok()) consumer_->take_back(item.mm_hash, place->generation);
}

}  // namespace stagelink::encoder_cache
