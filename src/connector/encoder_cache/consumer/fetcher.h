#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/deadline.h"
#include "base/mutex.h"
#include "connector/encoder_cache/consumer/consumer.h"
#include "connector/encoder_cache/options.h"
#include "connector/encoder_cache/push/push_desk.h"
#include "connector/encoder_cache/registry/registry_client.h"
#include "connector/pull/foreign.h"

namespace stagelink::encoder_cache {

enum class FetchState : uint8_t {
  kUnknown,   // Not wanted.
  kLooking,   // Asking the registry.
  kExpected,  // A producer will push it.
  kLoading,   // Reading it from its producer, or handing it on.
  kReady,     // Here, and offered to those who want it.
  kMissing,   // Cannot be had: why says the status.
};

struct FetchView {
  FetchState state = FetchState::kUnknown;
  Status why;           // Of a missing one.
  ProducerEntry place;  // Of a ready one: where the workers get it.
};

struct FetcherUsage {
  uint64_t wanted = 0;  // In any state.
  uint64_t looking = 0;
  uint64_t expected = 0;
  uint64_t loading = 0;
  uint64_t ready = 0;
};

// The scheduler's half of a consumer: embeddings that requests will need are found at the registry
// and brought here in the background, each once for all who want it, or are pushed here, and then
// handed on to the workers of this engine. Nothing here waits but its own threads.
//
// Thread-safety: all methods may run at the same time.
class Fetcher {
 public:
  // `readers`: workers that will get each embedding. Errors: those of RegistryClient::create and
  // Consumer::create; invalid_argument without `remote_registry_url`, unless it is pushed.
  static Result<std::unique_ptr<Fetcher>> create(const CacheOptions& options, uint32_t readers);
  ~Fetcher();
  Fetcher(const Fetcher&) = delete;
  Fetcher& operator=(const Fetcher&) = delete;

  // From now on it is sought, unless it is already. Past max_entries: missing (busy).
  void want(std::string_view mm_hash);
  // The same for one that a producer was told to push, under this transfer. It may be here by now.
  void expect(std::string_view mm_hash, const std::string& transfer_id);
  // The request of this transfer has what it needs.
  void refuse(const std::string& transfer_id);
  FetchView look(std::string_view mm_hash) const;
  // Nobody wants it any more: ends what runs for it, gives its memory back once those who read it
  // are done.
  void drop(std::string_view mm_hash);
  // It was handed on for good: forgotten, and held until the workers have read it.
  void handed_on(std::string_view mm_hash);

  // Where producers push to: "tcp://host:port".
  std::string consumer_zmq() const { return consumer_->zmq_address(); }
  PushDesk* desk() noexcept { return desk_.get(); }  // Null unless it is pushed.

  FetcherUsage usage() const;
  Consumer& consumer() noexcept { return *consumer_; }
  const Consumer& consumer() const noexcept { return *consumer_; }
  std::string metrics_text() const;
  void close(Duration timeout = std::chrono::seconds(5));

 private:
  struct Item;
  using Items = std::vector<std::shared_ptr<Item>>;

  Fetcher(const CacheOptions& options, uint32_t readers, std::unique_ptr<Consumer> consumer,
          std::shared_ptr<pull::ForeignHook> hook);
  Status start();
  std::shared_ptr<Item> add_expected(const std::string& mm_hash, const std::string& transfer_id)
      SL_EXCLUDES(mutex_);
  void pushed(const PushEvent& event);
  void take_pushed(const std::shared_ptr<Item>& item);
  void lost(Item& item, const std::string& transfer_id, const Status& why) SL_EXCLUDES(mutex_);
  void look_up(bool is_patient);
  Items take_to_look(bool is_patient);
  void query(RegistryClient& client, const Items& items, bool is_patient);
  void found(const std::shared_ptr<Item>& item, std::vector<ProducerEntry> producers);
  void not_found(const std::shared_ptr<Item>& item, const Status& why, bool is_patient);
  void load_queued();
  void load(const Items& items);
  void finish(Item& item, Result<Embedding> outcome);

  const CacheOptions options_;
  const uint32_t readers_;
  const std::unique_ptr<Consumer> consumer_;
  const std::shared_ptr<pull::ForeignHook> hook_;
  std::unique_ptr<PushDesk> desk_;
  std::unique_ptr<RegistryClient> clients_[2];  // Quick, patient.

  mutable Mutex mutex_;
  CondVar work_;
  bool stopping_ SL_GUARDED_BY(mutex_) = false;
  std::unordered_map<std::string, std::shared_ptr<Item>> items_ SL_GUARDED_BY(mutex_);
  Items to_look_[2] SL_GUARDED_BY(mutex_);  // At once; with patience.
  std::deque<std::shared_ptr<Item>> to_load_ SL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace stagelink::encoder_cache
