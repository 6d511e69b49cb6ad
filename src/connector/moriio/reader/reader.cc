#include "connector/moriio/reader/reader.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>

#include "base/fork_guard.h"

namespace stagelink::moriio {
namespace {

// How long the thread works on, or sleeps for, the first batch on its way before it looks at all
// others and at what is new.
constexpr Duration kPatience = std::chrono::milliseconds(1);
// When a batch that cannot be cancelled is tried again.
constexpr Duration kRetry = std::chrono::milliseconds(5);
constexpr size_t kMaxEnded = 4096;  // Outcomes remembered for wait().

}  // namespace

struct Reader::Transfer {
  ReadRequest request;
  Flight flight{MoveDirection::kRead};
  Deadline deadline = Deadline::in(Duration::zero());
  Deadline renew_at = Deadline::in(Duration::zero());
  std::optional<Status> ending;  // Why it fails; until nothing is on its way any more.
};

Reader::Reader(const ReaderOptions& options, std::shared_ptr<Wrapper> wrapper)
    : options_(options), wrapper_(std::move(wrapper)), fork_token_(ForkGuard::arm()) {
  thread_ = std::thread([this] { run(); });
}

Reader::~Reader() { close(); }

void Reader::close() {
  if (ForkGuard::forked(fork_token_)) {
    // The thread is the parent's.
    if (thread_.joinable()) thread_.detach();
    return;
  }
  MutexLock join_lock(join_mutex_);
  {
    MutexLock lock(mutex_);
    closing_ = true;
    wake_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

Status Reader::start(ReadRequest request) {
  if (ForkGuard::forked(fork_token_)) return forked_status("the reader");
  const std::string id = request.transfer_id;
  {
    MutexLock lock(mutex_);
    if (closing_) return {Reason::kClosed, "the reader is closed"};
    const auto before = known_.find(id);
    if (before != known_.end() && before->second.ended && !wrapper_->table().ended(id)) {
      // The id begins anew.
      std::erase(ended_order_, id);
      known_.erase(before);
    } else if (before != known_.end()) {
      return {Reason::kAlreadyExists, fmt::format("transfer {} has been started before", id)};
    }
    if (known_.size() - ended_order_.size() >= options_.max_active) {
      return {Reason::kTooManyTransfers,
              fmt::format("{} reads are under way", options_.max_active)};
    }
    known_[id];
  }
  const Status expected = wrapper_->table().expect(id, {});
  MutexLock lock(mutex_);
  if (!expected.ok() || closing_) {
    known_.erase(id);
    return expected.ok() ? Status(Reason::kClosed, "the reader is closed") : expected;
  }
  incoming_.push_back(std::move(request));
  wake_.notify_all();
  return {};
}

Status Reader::wait(const std::string& transfer_id, Duration timeout) {
  const Deadline deadline = Deadline::in(timeout);
  MutexLock lock(mutex_);
  while (true) {
    const auto at = known_.find(transfer_id);
    if (at == known_.end()) {
      return {Reason::kNotFound, fmt::format("no read is called {}", transfer_id)};
    }
    if (at->second.ended) return at->second.outcome;
    if (!ended_.wait_until(mutex_, deadline)) {
      return {Reason::kTimedOut, fmt::format("{} is still being read", transfer_id)};
    }
  }
}

Status Reader::cancel(const std::string& transfer_id, Duration timeout) {
  const Deadline deadline = Deadline::in(timeout);
  MutexLock lock(mutex_);
  while (true) {
    const auto at = known_.find(transfer_id);
    if (at == known_.end() || at->second.ended) return {};
    at->second.cancelled = true;
    wake_.notify_all();
    if (!ended_.wait_until(mutex_, deadline)) {
      return {Reason::kTimedOut, fmt::format("{} is still being stopped", transfer_id)};
    }
  }
}

size_t Reader::active() const {
  MutexLock lock(mutex_);
  return known_.size() - ended_order_.size();
}

void Reader::run() {
  ::pthread_setname_np(::pthread_self(), "sl-moriio-read");
  while (take_new()) {
    Duration patience = kPatience;
    for (auto at = transfers_.begin(); at != transfers_.end();) {
      Transfer& transfer = *(at++)->second;  // It may end, and be erased.
      const bool flying = transfer.flight.in_flight();
      try {
        advance(transfer, flying ? std::exchange(patience, Duration::zero()) : Duration::zero());
      } catch (const std::exception& error) {
        stop(transfer, Status(Reason::kSystem, error.what()));
      }
    }
  }
}

// What is new, once there is something to do. False when the reader is closed and all has ended.
bool Reader::take_new() {
  const bool flying = std::any_of(transfers_.begin(), transfers_.end(), [](const auto& entry) {
    return entry.second->flight.in_flight();
  });
  const Deadline next = next_look();
  MutexLock lock(mutex_);
  while (!flying && incoming_.empty() && !closing_ && !has_cancelled()) {
    if (!wake_.wait_until(mutex_, next)) break;
  }
  for (ReadRequest& request : std::exchange(incoming_, {})) {
    auto transfer = std::make_unique<Transfer>();
    const Duration limit =
        request.timeout > Duration::zero() ? request.timeout : options_.transfer_timeout;
    transfer->deadline = Deadline::in(limit);
    transfer->renew_at = Deadline::in(options_.renew_interval);
    transfer->flight.add(std::move(request.moves));
    transfer->request = std::move(request);
    transfers_[transfer->request.transfer_id] = std::move(transfer);
  }
  for (const auto& [id, transfer] : transfers_) {
    if (transfer->ending) continue;
    if (closing_) transfer->ending = Status(Reason::kClosed, "the reader was closed");
    if (known_[id].cancelled) transfer->ending = Status(Reason::kCancelled, "by the caller");
  }
  return !closing_ || !transfers_.empty();
}

bool Reader::has_cancelled() const {
  return std::any_of(known_.begin(), known_.end(), [](const auto& entry) {
    return entry.second.cancelled && !entry.second.ended;
  });
}

Deadline Reader::next_look() const {
  Deadline next = Deadline::in(Deadline::kLongest);
  const auto now = Deadline::Clock::now();
  for (const auto& [id, transfer] : transfers_) {
    next = Deadline::earlier(next, transfer->deadline);
    if (transfer->ending) next = Deadline::earlier(next, Deadline::in(kRetry));
    if (transfer->flight.waiting_to_post()) {
      next = Deadline::earlier(next, Deadline::after(now, transfer->flight.retry_at() - now));
    }
  }
  return next;
}

void Reader::advance(Transfer& transfer, Duration patience) {
  if (transfer.ending) return stop(transfer, *transfer.ending);
  Flight& flight = transfer.flight;
  const auto now = Deadline::Clock::now();
  Status moved;
  if (flight.waiting_to_post() && now >= flight.retry_at()) {
    const uint32_t before = flight.batches();
    moved = flight.post(now, std::max(transfer.deadline.left(), kPatience));
    batches_posted_.fetch_add(flight.batches() - before);
  }
  if (moved.ok()) moved = flight.poll(patience);
  if (!moved.ok()) return stop(transfer, std::move(moved));
  if (flight.idle()) return finish(transfer, {});
  if (transfer.deadline.passed()) {
    return stop(transfer, Status(Reason::kTimedOut,
                                 fmt::format("{}: the blocks have not come in time ({})",
                                             transfer.request.transfer_id,
                                             flight.waiting_to_post() ? "posting" : "in flight")));
  }
  renew(transfer);
}

void Reader::renew(Transfer& transfer) {
  if (!transfer.request.producers_have_version || !transfer.renew_at.passed()) return;
  transfer.renew_at = Deadline::in(options_.renew_interval);
  for (const Endpoint& producer : transfer.request.producers) {
    Renew message{transfer.request.transfer_id, {}};
    fill(message.extras, transfer.request);
    (void)wrapper_->notify(producer, message);  // The next one follows soon.
  }
}

// Ends the transfer once nothing of it touches memory any more, else tries again soon.
void Reader::stop(Transfer& transfer, Status why) {
  transfer.ending = why;
  if (!transfer.flight.cancel().ok()) return;
  finish(transfer, std::move(why));
}

void Reader::finish(Transfer& transfer, Status outcome) {
  const std::string id = transfer.request.transfer_id;
  if (outcome.ok()) bytes_read_.fetch_add(transfer.flight.bytes_landed());
  release(transfer.request, outcome);
  transfers_.erase(id);
  wrapper_->table().end(EventKind::kReceived, id, outcome);
  MutexLock lock(mutex_);
  Known& known = known_[id];
  known.ended = true;
  known.outcome = std::move(outcome);
  ended_order_.push_back(id);
  if (ended_order_.size() > kMaxEnded) {
    known_.erase(ended_order_.front());
    ended_order_.pop_front();
  }
  ended_.notify_all();
}

void Reader::release(const ReadRequest& request, const Status& outcome) {
  for (const Endpoint& producer : request.producers) {
    Release message{request.transfer_id, options_.tp_size, {}};
    fill(message.extras, request);
    message.extras.status = outcome.ok() ? "ok" : std::string(reason_name(outcome.reason()));
    // A failure here is logged by the senders; the producer's own lease remains.
    (void)wrapper_->notify(producer, message);
  }
}

void Reader::fill(MessageExtras& extras, const ReadRequest& request) const {
  extras.version = kMessageVersion;
  extras.incarnation = wrapper_->incarnation();
  extras.tp_size = options_.tp_size;
  extras.tp_rank = options_.tp_rank;
  if (!request.token.empty()) extras.token = request.token;
}

}  // namespace stagelink::moriio
