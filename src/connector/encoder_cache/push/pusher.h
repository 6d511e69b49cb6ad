#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "connector/encoder_cache/metrics.h"
#include "connector/encoder_cache/options.h"
#include "connector/encoder_cache/push/push_link.h"
#include "connector/encoder_cache/push/push_messages.h"
#include "connector/pull/pull_connector.h"
#include "connector/zmq/socket.h"

namespace stagelink::encoder_cache {

// An embedding that a consumer is to get as soon as it has been made.
struct PushOrder {
  std::string transfer_id;
  std::string consumer_zmq;  // "tcp://host:port"
  std::string mm_hash;
  EmbeddingInfo info;
};

struct PushFailure {
  std::string transfer_id;
  std::string mm_hash;
  Status why;
};

// The producer's half of pushes: announces embeddings to their consumers while they are being made,
// hands them on when they are there, and says so. One thread asks all consumers; one that does not
// answer holds up no other.
//
// Thread-safety: all methods may run at the same time.
class Pusher {
 public:
  // What it serves outlives it. Errors: those of ZeroMQ; limit (nofile).
  static Result<std::unique_ptr<Pusher>> create(const CacheOptions& options,
                                                pull::PullConnector& pull, CacheMetrics& metrics,
                                                std::string producer_zmq);
  ~Pusher();
  Pusher(const Pusher&) = delete;
  Pusher& operator=(const Pusher&) = delete;

  // Never waits. Errors, each a failure too: invalid_argument, incompatible, already_exists (the
  // transfer is under way), busy (max_entries), invalid_state.
  Status order(const PushOrder& order);
  // It is there: goes to all who were promised it. `piece` keeps it until they have it.
  void made(std::string_view mm_hash, const EmbeddingInfo& info, const pull::Piece& piece);
  // It will not come: those who were promised it are told.
  void failed(std::string_view mm_hash, const Status& why);
  // Nobody wants the transfer any more.
  void cancel(std::string_view transfer_id);

  uint64_t pending() const;
  std::vector<PushFailure> take_failures();
  // Gives up what is under way, and says so to its consumers; idempotent.
  void close();

 private:
  struct Push;
  struct Outgoing {
    std::string consumer;
    PushLetter letter;
  };
  using Time = Deadline::Clock::time_point;

  Pusher(const CacheOptions& options, pull::PullConnector& pull, CacheMetrics& metrics,
         std::string producer_zmq, std::shared_ptr<zmq::Context> context, UniqueFd wake);
  Status admit(const PushOrder& order) SL_REQUIRES(mutex_);
  uint64_t ask(Push& push, PushAsk what) SL_REQUIRES(mutex_);
  void refresh(Push& push) SL_REQUIRES(mutex_);
  void reserve(Push& push) SL_REQUIRES(mutex_);
  void complete(Push& push) SL_REQUIRES(mutex_);
  void say_complete(Push& push) SL_REQUIRES(mutex_);
  void ask_again(Push& push) SL_REQUIRES(mutex_);
  void answer_orphan(const PushReply& reply) SL_REQUIRES(mutex_);
  void answered(Push& push, const PushReply& reply) SL_REQUIRES(mutex_);
  void set_timer(Push& push, Time at) SL_REQUIRES(mutex_);
  void finish(Push& push, const Status& outcome) SL_REQUIRES(mutex_);
  void fail(const std::string& transfer_id, const std::string& mm_hash, const Status& why)
      SL_REQUIRES(mutex_);

  // On the thread.
  void run();
  Deadline do_timers() SL_EXCLUDES(mutex_);
  void take_outgoing() SL_EXCLUDES(mutex_);
  Deadline send_all();
  void sent(const std::vector<uint64_t>& ids) SL_EXCLUDES(mutex_);
  void forget_ended(PushLink& link) SL_EXCLUDES(mutex_);
  Duration patience() const { return options_.space_timeout + 2 * options_.control_timeout; }
  void lose(const std::string& consumer, const Status& why) SL_EXCLUDES(mutex_);
  void wait(const Deadline& until);
  void take_replies(PushLink& link);

  const CacheOptions options_;
  pull::PullConnector& pull_;
  CacheMetrics& metrics_;
  const std::string producer_zmq_;
  const std::shared_ptr<zmq::Context> context_;
  const UniqueFd wake_;
  std::map<std::string, std::unique_ptr<PushLink>> links_;  // Of the thread, by consumer.

  mutable Mutex mutex_;
  bool stopping_ SL_GUARDED_BY(mutex_) = false;
  uint64_t next_ask_ SL_GUARDED_BY(mutex_) = 1;
  uint64_t next_turn_ SL_GUARDED_BY(mutex_) = 1;
  std::unordered_map<std::string, std::unique_ptr<Push>> pushes_ SL_GUARDED_BY(mutex_);
  std::multimap<std::string, Push*, std::less<>> by_hash_ SL_GUARDED_BY(mutex_);
  std::set<std::pair<Time, Push*>> timers_ SL_GUARDED_BY(mutex_);
  std::map<std::string, size_t> consumers_ SL_GUARDED_BY(mutex_);  // Pushes of each.
  std::unordered_map<uint64_t, Push*> asks_ SL_GUARDED_BY(mutex_);
  // Reservations that are still asked for though their pushes have ended: consumer and transfer.
  std::unordered_map<uint64_t, std::pair<std::string, std::string>> orphans_ SL_GUARDED_BY(mutex_);
  // Messages and the consumers that they are for, on their way to the thread.
  std::vector<Outgoing> outgoing_ SL_GUARDED_BY(mutex_);
  std::deque<PushFailure> failures_ SL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace stagelink::encoder_cache
