// The writer's thread: one step of each transfer's state machine after the other.
#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>

#include "connector/moriio/writer/write_transfer.h"
#include "connector/moriio/writer/writer.h"

namespace stagelink::moriio {
namespace {

// How long the thread works on, or sleeps for, the first batch on its way before it looks at all
// others and at what is new.
constexpr Duration kPatience = std::chrono::milliseconds(1);
// When a host or a target that is busy, or a batch that cannot be cancelled, is tried again.
constexpr Duration kRetry = std::chrono::milliseconds(5);

bool nothing_to_write(const Allocation& allocation) {
  const auto& groups = allocation.extras.block_groups;
  return allocation.block_ids.empty() &&
         std::all_of(groups.begin(), groups.end(), [](const auto& group) { return group.empty(); });
}

}  // namespace

void Writer::run() {
  ::pthread_setname_np(::pthread_self(), "sl-moriio-write");
  std::deque<Item> items;
  while (take_items(items)) {
    for (Item& item : items) apply(item);
    items.clear();
    Duration patience = flying_.empty() ? Duration::zero() : kPatience;
    for (const std::string& id : due()) {
      const auto at = transfers_.find(id);
      if (at == transfers_.end()) continue;
      const bool first_flying = patience > Duration::zero() && flying_.contains(id);
      look_after(*at->second,
                 first_flying ? std::exchange(patience, Duration::zero()) : Duration::zero());
    }
  }
}

// What is new; if nothing is and nothing is on its way, sleeps up to the next timer. False when the
// writer is closed and nothing is left to do.
bool Writer::take_items(std::deque<Item>& items) {
  MutexLock lock(mutex_);
  while (items_.empty() && !closing_ && flying_.empty()) {
    if (timers_.empty()) {
      wake_.wait(mutex_);
      continue;
    }
    const Duration left = timers_.begin()->first - Deadline::Clock::now();
    if (!wake_.wait_until(mutex_, Deadline::in(left))) break;
  }
  items.swap(items_);
  if (!closing_) return true;
  for (const auto& [id, transfer] : transfers_) {
    // One whose peer is being told ends by itself, soon.
    if (transfer->state != WriteState::kNotifying && !transfer->ending) {
      transfer->ending = Status(Reason::kClosed, "the writer was closed");
    }
    attention_.insert(id);
  }
  if (transfers_.empty() && items.empty()) return false;
  // Only a notification, or a batch that cannot be cancelled, keeps us here.
  if (items.empty() && flying_.empty()) wake_.wait_until(mutex_, Deadline::in(kRetry));
  return true;
}

void Writer::apply(Item& item) {
  auto at = transfers_.find(item.transfer_id);
  if (at == transfers_.end()) {
    if (item.kind != Item::Kind::kTask) return;
    at = transfers_.emplace(item.transfer_id, std::make_unique<Transfer>(item.transfer_id)).first;
    const Duration age = Deadline::Clock::now() - item.task.enqueued;
    set_state(*at->second, WriteState::kWaitingBlocks, options_.defer_timeout - age);
  }
  Transfer& transfer = *at->second;
  switch (item.kind) {
    case Item::Kind::kTask: transfer.pending.push_back(std::move(item.task)); break;
    case Item::Kind::kSeal: transfer.sealed = true; break;
    case Item::Kind::kBlocks: break;
    case Item::Kind::kStop: transfer.ending = std::move(item.status); break;
    case Item::Kind::kTold: transfer.told = std::move(item.status); break;
  }
  attention_.insert(item.transfer_id);
}

// Those with news, with batches on their way, or whose time has come.
std::vector<std::string> Writer::due() {
  std::set<std::string> ids = std::exchange(attention_, {});
  ids.insert(flying_.begin(), flying_.end());
  const auto now = Deadline::Clock::now();
  while (!timers_.empty() && timers_.begin()->first <= now) {
    ids.insert(timers_.begin()->second);
    timers_.erase(timers_.begin());
  }
  return {ids.begin(), ids.end()};
}

void Writer::set_timer(Transfer& transfer) {
  timers_.erase({transfer.timer, transfer.transfer_id});
  const auto now = Deadline::Clock::now();
  auto next = now + transfer.deadline.left();
  if (transfer.state == WriteState::kNotifying) {
    next = now + options_.notify_timeout;  // The answer comes by itself.
  } else if (transfer.ending) {
    next = now + kRetry;
  } else if (transfer.flight.waiting_to_post()) {
    next = std::min(next, transfer.flight.retry_at());
  } else if (transfer.allocation != nullptr && !transfer.pending.empty()) {
    next = std::min(next, now + kRetry);
  }
  transfer.timer = next;
  timers_.emplace(next, transfer.transfer_id);
}

void Writer::look_after(Transfer& transfer, Duration patience) {
  const std::string id = transfer.transfer_id;
  try {
    advance(transfer, patience);
  } catch (const std::exception& error) {
    if (const auto at = transfers_.find(id); at != transfers_.end()) {
      stop(*at->second, WriteState::kFailed, Status(Reason::kSystem, error.what()));
    }
  }
  if (const auto at = transfers_.find(id); at != transfers_.end()) set_timer(*at->second);
}

void Writer::advance(Transfer& transfer, Duration patience) {
  if (transfer.told) {
    const WriteState end = transfer.told->ok() ? WriteState::kDone : WriteState::kFailed;
    return finish(transfer, end, *transfer.told);
  }
  // Its peer is being told that all is there; the answer ends it.
  if (transfer.state == WriteState::kNotifying) return;
  if (transfer.ending) return stop(transfer, transfer.ending_as, *transfer.ending);
  Status moved = find_blocks(transfer);
  if (moved.ok() && transfer.allocation != nullptr) {
    if (nothing_to_write(*transfer.allocation)) return finish(transfer, WriteState::kDone, {});
    moved = move(transfer, patience);
  }
  if (!moved.ok()) return stop(transfer, WriteState::kFailed, moved);
  const bool landed =
      transfer.allocation != nullptr && transfer.pending.empty() && transfer.flight.idle();
  if (landed && transfer.sealed) return start_notify(transfer);
  if (!transfer.deadline.passed()) return;
  const std::string_view what = transfer.state == WriteState::kWaitingBlocks
                                    ? "the consumer has not said where to write"
                                : landed ? "the last layer was not announced"
                                         : "the blocks are not written";
  stop(transfer, WriteState::kExpired,
       Status(Reason::kTimedOut, fmt::format("{}: {} in time ({})", transfer.transfer_id, what,
                                             write_state_name(transfer.state))));
}

Status Writer::find_blocks(Transfer& transfer) {
  if (transfer.allocation != nullptr) return {};
  transfer.allocation = wrapper_->table().begin_writing(transfer.transfer_id);
  if (transfer.allocation == nullptr) return {};
  set_state(transfer, WriteState::kPosting, options_.transfer_timeout);
  if (transfer.pending.empty()) return {};
  SL_ASSIGN(transfer.consumer, host_->consumer_of(*transfer.allocation, transfer.pending.front()));
  return {};
}

// Plans what is new, posts what there is room for, looks at what is on its way.
Status Writer::move(Transfer& transfer, Duration patience) {
  Flight& flight = transfer.flight;
  if (!transfer.pending.empty()) {
    const Status planned = plan_pending(transfer);
    if (planned.code() != Code::kBusy) SL_TRY(planned);
  }
  const auto now = Deadline::Clock::now();
  if (flight.waiting_to_post() && now >= flight.retry_at()) {
    const uint32_t before = flight.batches();
    SL_TRY(flight.post(now, std::max<Duration>(transfer.deadline.left(), kPatience)));
    batches_posted_.fetch_add(flight.batches() - before);
  }
  SL_TRY(flight.poll(patience));
  if (flight.in_flight()) {
    flying_.insert(transfer.transfer_id);
  } else {
    flying_.erase(transfer.transfer_id);
  }
  const bool posting = flight.waiting_to_post() || !transfer.pending.empty();
  const WriteState state = posting ? WriteState::kPosting : WriteState::kInFlight;
  if (state != transfer.state) set_state(transfer, state, options_.transfer_timeout);
  return {};
}

Status Writer::plan_pending(Transfer& transfer) {
  std::vector<WriteTask>& pending = transfer.pending;
  for (; transfer.synchronized < pending.size(); ++transfer.synchronized) {
    auto& ticket = pending[transfer.synchronized].ticket;
    if (ticket != nullptr) SL_TRY(ticket->synchronize());
  }
  SL_ASSIGN(std::vector<Move> moves, host_->plan(*transfer.allocation, pending));
  transfer.flight.add(std::move(moves));
  const size_t planned = pending.size();
  pending.clear();
  transfer.synchronized = 0;
  // The next wait is for these.
  set_state(transfer, WriteState::kPosting, options_.transfer_timeout);
  MutexLock lock(mutex_);
  queued_ -= planned;
  return {};
}

void Writer::start_notify(Transfer& transfer) {
  if (!transfer.consumer) return finish(transfer, WriteState::kDone, {});
  set_state(transfer, WriteState::kNotifying, options_.notify_timeout);
  WriteDone message{transfer.transfer_id, {}};
  message.extras.token = transfer.allocation->extras.token;
  if (transfer.allocation->extras.version) {
    message.extras.version = kMessageVersion;
    message.extras.incarnation = wrapper_->incarnation();
    message.extras.tp_rank = options_.tp_rank;
  }
  const Status queued = wrapper_->notify(*transfer.consumer, message,
                                         [this, id = transfer.transfer_id](const Status& outcome) {
                                           push({Item::Kind::kTold, id, {}, outcome});
                                         });
  if (!queued.ok()) finish(transfer, WriteState::kFailed, queued);
}

// Ends the transfer once nothing of it touches memory any more, else tries again soon.
void Writer::stop(Transfer& transfer, WriteState state, Status why) {
  transfer.ending = why;
  transfer.ending_as = state;
  flying_.erase(transfer.transfer_id);
  if (!transfer.flight.cancel().ok()) return;
  // A consumer that has just said where it waits is told, too.
  if (transfer.allocation == nullptr) (void)find_blocks(transfer);
  tell_failure(transfer, why);
  finish(transfer, state, std::move(why));
}

void Writer::tell_failure(const Transfer& transfer, const Status& why) {
  if (!transfer.consumer || !transfer.allocation->extras.version) return;
  WriteFailed message{transfer.transfer_id, {}};
  message.extras.version = kMessageVersion;
  message.extras.token = transfer.allocation->extras.token;
  message.extras.incarnation = wrapper_->incarnation();
  message.extras.tp_rank = options_.tp_rank;
  message.extras.status = fmt::format("{}: {}", reason_name(why.reason()), why.message());
  // A failure here is logged by the senders; the consumer's own deadline remains.
  (void)wrapper_->notify(*transfer.consumer, message);
}

}  // namespace stagelink::moriio
