#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "connector/encoder_cache/consumer/consumer.h"
#include "connector/encoder_cache/push/reservation_table.h"
#include "connector/pull/foreign.h"

namespace stagelink::encoder_cache {

// Where producers announce what they will have for this consumer, and say that they have it: it
// takes room in the consumer's pool, reads what is announced from its producer, and keeps it until
// a request comes for it. No producer ever writes here. See docs/encoder-cache.md.
//
// Thread-safety: all methods may run at the same time.
class PushDesk {
 public:
  // Told each event once, on a thread of the desk, without its locks; not to wait.
  using OnEvent = std::function<void(const PushEvent&)>;

  // The consumer outlives it.
  PushDesk(Consumer& consumer, OnEvent on_event);
  ~PushDesk();
  PushDesk(const PushDesk&) = delete;
  PushDesk& operator=(const PushDesk&) = delete;

  // Never waits. False: not JSON's beginning.
  bool take(std::span<const std::byte> message, const pull::ForeignAnswer& answer);

  PushView look(std::string_view transfer_id) const;
  // The embedding, if it is here, with a share in its memory.
  std::optional<Embedding> find(const std::string& mm_hash) const;
  void expect(const std::string& transfer_id);
  void heard(const std::string& transfer_id);
  void release(const std::string& transfer_id);
  void refuse(const std::string& transfer_id);

  // Makes idle ones give way, until `bytes` are free; how many were freed.
  uint64_t give_way(uint64_t bytes);

  PushUsage usage() const;
  void append_metrics(std::string& out, std::string_view labels) const;
  // Ends all transfers and its threads; idempotent.
  void close();

 private:
  struct Job {
    std::string message;
    pull::ForeignAnswer answer;
  };
  // What is read, and where its bytes go, which are held as long.
  struct Reading {
    std::shared_ptr<Arrival> arrival;
    pull::Piece piece;
    ProducerEntry place;
  };
  using Readings = std::vector<Reading>;
  using Aftermath = ReservationTable::Aftermath;

  void serve_messages();
  void serve(const Job& job);
  void find_room();
  void read_arrivals();
  Readings take_to_read() SL_EXCLUDES(mutex_);
  void read(const Readings& readings);
  // Queues under the lock what threads are to do; the rest is for settle().
  void queue(Aftermath& after) SL_REQUIRES(mutex_);
  void settle(Aftermath& after) SL_EXCLUDES(mutex_);
  void tell(const PushEvent& event);

  Consumer& consumer_;
  const OnEvent on_event_;

  mutable Mutex mutex_;
  CondVar messages_;  // Or something that expires sooner.
  CondVar room_;
  CondVar reads_;
  bool stopping_ SL_GUARDED_BY(mutex_) = false;
  ReservationTable table_ SL_GUARDED_BY(mutex_);
  std::deque<Job> jobs_ SL_GUARDED_BY(mutex_);
  size_t job_bytes_ SL_GUARDED_BY(mutex_) = 0;
  std::deque<std::shared_ptr<Arrival>> to_room_ SL_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Arrival>> to_read_ SL_GUARDED_BY(mutex_);
  std::set<std::string> busy_producers_ SL_GUARDED_BY(mutex_);  // One reader each.
  std::vector<std::thread> threads_;
};

}  // namespace stagelink::encoder_cache
