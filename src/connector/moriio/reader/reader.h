#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "connector/moriio/move/flight.h"
#include "connector/moriio/wrapper/wrapper.h"

namespace stagelink::moriio {

struct ReaderOptions {
  uint32_t tp_rank = 0;
  uint32_t tp_size = 1;
  Duration transfer_timeout = std::chrono::seconds(30);
  Duration renew_interval = std::chrono::seconds(5);
  size_t max_active = 65536;
};

// Pull one transfer.
struct ReadRequest {
  std::string transfer_id;
  std::vector<Move> moves;              // None: nothing to read, the producer is released at once.
  std::vector<Endpoint> producers;      // Notify ports of the ranks to release.
  std::string token;                    // Of the transfer, if the producer gave one.
  bool producers_have_version = false;  // Then they are told of long reads (renew).
  Duration timeout = Duration::zero();  // Zero: transfer_timeout.
};

// Read mode of a decode rank. Each transfer ends once, as kReceived in the wrapper's table, when
// nothing touches memory for it any more and its producers are being released.
//
// Thread-safety: all methods may run at the same time. None waits but wait(), cancel() and close().
class Reader {
 public:
  // Starts the thread. The wrapper outlives the reader.
  Reader(const ReaderOptions& options, std::shared_ptr<Wrapper> wrapper);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // Errors: already_exists, limit, invalid_state (closed).
  Status start(ReadRequest request) SL_EXCLUDES(mutex_);
  // The outcome of a transfer that has been started. Errors: timed_out while it goes on; not_found;
  // else what ended it.
  Status wait(const std::string& transfer_id, Duration timeout) SL_EXCLUDES(mutex_);
  // Ok: nothing of it touches memory any more. Errors: timed_out; it goes on in the background.
  Status cancel(const std::string& transfer_id, Duration timeout) SL_EXCLUDES(mutex_);

  size_t active() const SL_EXCLUDES(mutex_);
  uint64_t bytes_read() const noexcept { return bytes_read_.load(); }
  uint64_t batches_posted() const noexcept { return batches_posted_.load(); }

  void close() SL_EXCLUDES(mutex_);

 private:
  struct Transfer;

  // The thread.
  void run();
  bool take_new() SL_EXCLUDES(mutex_);
  bool has_cancelled() const SL_REQUIRES(mutex_);
  Deadline next_look() const;
  void advance(Transfer& transfer, Duration patience);
  void renew(Transfer& transfer);
  void stop(Transfer& transfer, Status why);
  void finish(Transfer& transfer, Status outcome) SL_EXCLUDES(mutex_);
  void release(const ReadRequest& request, const Status& outcome);
  void fill(MessageExtras& extras, const ReadRequest& request) const;

  const ReaderOptions options_;
  const std::shared_ptr<Wrapper> wrapper_;
  std::atomic<uint64_t> bytes_read_{0};
  std::atomic<uint64_t> batches_posted_{0};

  // What is known of a transfer outside the thread.
  struct Known {
    bool ended = false;
    bool cancelled = false;
    Status outcome;
  };
  mutable Mutex mutex_;
  CondVar wake_;
  CondVar ended_;
  std::map<std::string, Known> known_ SL_GUARDED_BY(mutex_);
  std::deque<std::string> ended_order_ SL_GUARDED_BY(mutex_);
  std::deque<ReadRequest> incoming_ SL_GUARDED_BY(mutex_);
  bool closing_ SL_GUARDED_BY(mutex_) = false;
  Mutex join_mutex_;

  std::map<std::string, std::unique_ptr<Transfer>> transfers_;  // Of the thread.
  const uint64_t fork_token_;
  std::thread thread_;
};

}  // namespace stagelink::moriio
