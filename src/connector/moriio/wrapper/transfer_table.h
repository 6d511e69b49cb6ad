#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/mutex.h"
#include "connector/moriio/messages/notify_message.h"
#include "connector/moriio/wrapper/rejects.h"
#include "connector/moriio/wrapper/transfer_event.h"
#include "stagelink/result.h"

namespace stagelink::moriio {

struct TableOptions {
  Role role = Role::kAny;
  // Of this engine: releases and write_dones are counted up to what is needed, and the table gives
  // events. 0: it gives each message as it comes, as vLLM 0.32 does, and its caller counts.
  uint32_t tp_size = 0;
  size_t max_transfers = 65536;  // That expect() was called for, or that wait for blocks.
  size_t max_unmatched = 4096;   // Messages for transfers that nobody has asked for.
  size_t max_ended = 4096;       // Ids remembered after the end.
  size_t max_queued = 65536;     // Acks, completions, events that nobody has taken.
  Duration unmatched_timeout = std::chrono::seconds(60);
};

// What this rank's scheduler knows of a transfer before messages of it are believed.
struct Expectation {
  std::string token;                    // Messages that carry another one are refused.
  bool token_required = false;          // Those that carry none, too.
  uint32_t messages = 0;                // How many ranks report; 0: as the messages say.
  Duration timeout = Duration::zero();  // kOverdue after it; zero: never.
};

// Told of messages that somebody acts upon; called without locks, on the listener's thread.
class TableObserver {
 public:
  virtual void on_allocated(const std::string& transfer_id) = 0;
  // True if the observer is at work on it and will call end() when it has stopped.
  virtual bool on_released(const std::string& transfer_id) = 0;

 protected:
  ~TableObserver() = default;
};

// The transfers of one rank: who allocated, who reported, what has ended. Everything in it is
// bounded; what nobody asks for expires. Ids that have ended are remembered for a while, so that
// late and repeated messages change nothing.
//
// Thread-safety: all methods may run at the same time.
class TransferTable {
 public:
  using Clock = Deadline::Clock;

  explicit TransferTable(const TableOptions& options);
  // The observer outlives the table, or is taken away first (null). Returns when no call is under
  // way.
  void observe(TableObserver* observer);

  // Acts upon a message, or counts why not.
  void accept(const NotifyMessage& message);

  // From here on messages of this transfer are believed; those that came early are looked at now.
  // Errors: limit; already_exists if the transfer has ended under this id.
  Status expect(const std::string& transfer_id, const Expectation& expectation);

  std::shared_ptr<const Allocation> allocation(const std::string& transfer_id) const;
  void set_allocation(const std::string& transfer_id, Allocation allocation);
  bool drop_allocation(const std::string& transfer_id);
  std::vector<std::string> allocated() const;
  // The blocks of this transfer do not change any more. Null if there are none (yet).
  std::shared_ptr<const Allocation> begin_writing(const std::string& transfer_id);

  // The end of a transfer, once: the first call decides and gives the event (or ack), later ones
  // are counted. True for the first.
  bool end(EventKind kind, const std::string& transfer_id, Status outcome);
  bool ended(const std::string& transfer_id) const;
  // The id begins anew: what has ended under it is forgotten, what is open stays.
  void forget(const std::string& transfer_id);
  // Without event: late messages are ignored from now on.
  void mark_ended(const std::string& transfer_id);

  std::vector<TransferEvent> take_events();
  // With tp_size 0.
  std::vector<TransferAck> take_acks();
  std::vector<std::string> take_completions();  // Each id once.
  void add_ack(TransferAck ack);

  const RejectCounter& rejects() const noexcept { return rejects_; }
  RejectCounter& rejects() noexcept { return rejects_; }
  size_t size() const;
  // Ends by outcome, for metrics: (kind, reason, count).
  struct EndCount {
    EventKind kind;
    Reason reason;
    uint64_t count;
  };
  std::vector<EndCount> end_counts() const;

 private:
  struct Record {
    bool expected = false;
    Expectation expectation;
    Clock::time_point deadline{};       // Of the expectation; zero: none, or told.
    std::vector<NotifyMessage> parked;  // Came before expect().
    size_t parked_bytes = 0;
    std::shared_ptr<const Allocation> allocation;
    bool writing = false;
    std::vector<std::string> heard;  // Ranks that have reported.
    uint32_t reports = 0;
    bool renewed = false;                        // An event that has not been taken.
    std::list<std::string>::iterator unmatched;  // Where in unmatched_, if `listed`.
    Clock::time_point listed_at{};
    bool listed = false;
  };
  struct Ended {
    std::string transfer_id;
    std::string incarnation;
  };
  using Records = std::unordered_map<std::string, Record>;
  // What a message asks of the observer.
  enum class After : uint8_t { kNothing, kAllocated, kReleased };

  After apply(const NotifyMessage& message) SL_REQUIRES(mutex_);
  bool right_role(const NotifyMessage& message);
  bool is_late(const NotifyMessage& message, const MessageExtras& extras) SL_REQUIRES(mutex_);
  bool park(const NotifyMessage& message) SL_REQUIRES(mutex_);
  bool may_speak(const Record& record, const MessageExtras& extras, const std::string& what);
  After accept_blocks(const RemoteBlocks& message) SL_REQUIRES(mutex_);
  After accept_release(const Release& message) SL_REQUIRES(mutex_);
  After accept_write_done(const WriteDone& message) SL_REQUIRES(mutex_);
  After accept_write_failed(const WriteFailed& message) SL_REQUIRES(mutex_);
  After accept_renew(const Renew& message) SL_REQUIRES(mutex_);
  After accept_legacy(const LegacyId& message) SL_REQUIRES(mutex_);
  // False if this sender has reported before.
  bool count_report(Record& record, const MessageExtras& extras, const std::string& transfer_id);
  void tell(After what, const std::string& transfer_id) SL_EXCLUDES(mutex_);

  Records::iterator find_or_add(const std::string& transfer_id) SL_REQUIRES(mutex_);
  void list_unmatched(Records::iterator at) SL_REQUIRES(mutex_);
  void unlist(Record& record) SL_REQUIRES(mutex_);
  void erase(Records::iterator at) SL_REQUIRES(mutex_);
  bool end_locked(EventKind kind, const std::string& transfer_id, Status outcome)
      SL_REQUIRES(mutex_);
  void remember_ended(const std::string& transfer_id, std::string incarnation) SL_REQUIRES(mutex_);
  void forget_ended(const std::string& transfer_id) SL_REQUIRES(mutex_);
  void queue_ack(TransferAck ack) SL_REQUIRES(mutex_);
  void sweep(Clock::time_point now) SL_REQUIRES(mutex_);
  void count_end(EventKind kind, Reason reason) SL_REQUIRES(mutex_);
  bool counts() const noexcept { return options_.tp_size > 0; }

  const TableOptions options_;
  RejectCounter rejects_{"moriio.notify"};

  mutable Mutex mutex_;
  Records records_ SL_GUARDED_BY(mutex_);
  std::list<std::string> unmatched_ SL_GUARDED_BY(mutex_);  // Oldest first.
  size_t parked_bytes_ SL_GUARDED_BY(mutex_) = 0;
  std::set<std::pair<Clock::time_point, std::string>> deadlines_ SL_GUARDED_BY(mutex_);
  std::list<Ended> ended_order_ SL_GUARDED_BY(mutex_);  // Oldest first.
  std::unordered_map<std::string, std::list<Ended>::iterator> ended_ SL_GUARDED_BY(mutex_);
  std::deque<TransferEvent> events_ SL_GUARDED_BY(mutex_);
  std::deque<TransferAck> acks_ SL_GUARDED_BY(mutex_);
  std::deque<std::string> completions_ SL_GUARDED_BY(mutex_);
  std::vector<EndCount> end_counts_ SL_GUARDED_BY(mutex_);

  Mutex observer_mutex_;
  TableObserver* observer_ SL_GUARDED_BY(observer_mutex_) = nullptr;
};

}  // namespace stagelink::moriio
