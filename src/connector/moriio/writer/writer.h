#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "connector/moriio/wrapper/wrapper.h"
#include "connector/moriio/writer/writer_host.h"

namespace stagelink::moriio {

struct WriterOptions {
  uint32_t tp_rank = 0;
  uint32_t tp_size = 1;
  Duration defer_timeout = std::chrono::seconds(60);     // For remote_blocks to come.
  Duration transfer_timeout = std::chrono::seconds(30);  // To post all; then again, to land.
  Duration notify_timeout = std::chrono::seconds(5);
  size_t max_queued = 65536;  // Tasks that wait for blocks or to be posted.
};

enum class WriteState : uint8_t {
  kUnknown,
  kWaitingBlocks,
  kPosting,
  kInFlight,
  kNotifying,
  kDone,
  kFailed,
  kExpired,
  kAborted
};
std::string_view write_state_name(WriteState state) noexcept;

// Write mode of a prefill rank: from the first layer to write_done.
//
//   waiting_blocks --blocks--> posting --all posted--> in_flight --sealed, all landed--> notifying
//         |                       ^-------next layer-------'                                 |
//         '--> expired | aborted | failed (from any)                                       done
//
// Invariants:
// 1. A state has a deadline; nothing waits for ever.
// 2. write_done is sent once, after every sealed layer has landed; write_failed instead of it,
// once,
//    to peers that understand it.
// 3. The end goes to the table (and so to the scheduler) once, when nothing touches the blocks any
//    more, and after the peer was told.
//
// Thread-safety: all methods may run at the same time. None of them waits but abort() and close().
class Writer final : private TableObserver {
 public:
  // Starts the thread. The wrapper and the host outlive the writer.
  Writer(const WriterOptions& options, std::shared_ptr<Wrapper> wrapper,
         std::shared_ptr<WriterHost> host);
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // False if the layer is scheduled already or the transfer has ended. The first task of a transfer
  // may say which messages of it are believed. Errors: limit (queue full), invalid_state (closed).
  Result<bool> schedule(WriteTask task, const Expectation& expectation = {}) SL_EXCLUDES(mutex_);
  bool is_scheduled(const std::string& transfer_id, const std::string& layer) const
      SL_EXCLUDES(mutex_);
  // What is scheduled so far is all there is of these transfers.
  void seal_pending() SL_EXCLUDES(mutex_);
  void seal(const std::string& transfer_id) SL_EXCLUDES(mutex_);

  // Stops a transfer. Ok: nothing of it touches memory any more (also if it was not known or had
  // ended). Errors: timed_out; the abort goes on, and its end is reported when it is complete.
  Status abort(const std::string& transfer_id, Duration timeout) SL_EXCLUDES(mutex_);
  void start_abort(const std::string& transfer_id, std::string why) SL_EXCLUDES(mutex_);

  WriteState state(const std::string& transfer_id) const SL_EXCLUDES(mutex_);
  size_t active() const SL_EXCLUDES(mutex_);  // Transfers that have not ended.
  uint64_t batches_posted() const noexcept { return batches_posted_.load(); }
  uint64_t bytes_written() const noexcept { return bytes_written_.load(); }

  // Aborts everything and joins the thread. Idempotent. Not to be called by the writer's own
  // thread.
  void close() SL_EXCLUDES(mutex_);
  bool on_own_thread() const noexcept { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  struct Transfer;
  struct Scheduled;
  struct Item;

  void on_allocated(const std::string& transfer_id) override SL_EXCLUDES(mutex_);
  bool on_released(const std::string& transfer_id) override SL_EXCLUDES(mutex_);

  // The thread.
  void run();
  bool take_items(std::deque<Item>& items) SL_EXCLUDES(mutex_);
  void apply(Item& item);
  void look_after(Transfer& transfer, Duration patience);
  void advance(Transfer& transfer, Duration patience);
  Status find_blocks(Transfer& transfer);
  Status plan_pending(Transfer& transfer);
  Status move(Transfer& transfer, Duration patience);
  void start_notify(Transfer& transfer);
  void stop(Transfer& transfer, WriteState state, Status why);
  void tell_failure(const Transfer& transfer, const Status& why);
  void finish(Transfer& transfer, WriteState state, Status outcome) SL_EXCLUDES(mutex_);
  void set_state(Transfer& transfer, WriteState state, Duration limit) SL_EXCLUDES(mutex_);
  void set_timer(Transfer& transfer);
  std::vector<std::string> due();
  bool push(Item item) SL_EXCLUDES(mutex_);
  std::optional<Result<bool>> refusal(const WriteTask& task) const SL_REQUIRES(mutex_);

  const WriterOptions options_;
  const std::shared_ptr<Wrapper> wrapper_;
  const std::shared_ptr<WriterHost> host_;
  std::atomic<uint64_t> batches_posted_{0};
  std::atomic<uint64_t> bytes_written_{0};

  mutable Mutex mutex_;
  CondVar wake_;
  CondVar ended_;
  std::deque<Item> items_ SL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, Scheduled> scheduled_ SL_GUARDED_BY(mutex_);
  std::vector<std::string> unsealed_ SL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, WriteState> finished_ SL_GUARDED_BY(mutex_);
  std::deque<std::string> finished_order_ SL_GUARDED_BY(mutex_);
  size_t queued_ SL_GUARDED_BY(mutex_) = 0;  // Tasks that have not been planned.
  bool closing_ SL_GUARDED_BY(mutex_) = false;
  Mutex join_mutex_;

  // Of the thread.
  std::map<std::string, std::unique_ptr<Transfer>> transfers_;
  std::set<std::string> attention_;  // To be looked after in this round.
  std::set<std::string> flying_;     // With batches on their way.
  std::set<std::pair<Deadline::Clock::time_point, std::string>> timers_;
  const uint64_t fork_token_;
  std::thread thread_;
};

}  // namespace stagelink::moriio
