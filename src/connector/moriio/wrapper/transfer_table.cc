#include "connector/moriio/wrapper/transfer_table.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"

namespace stagelink::moriio {

std::string_view event_name(EventKind kind) noexcept {
  switch (kind) {
    case EventKind::kSent: return "sent";
    case EventKind::kReceived: return "received";
    case EventKind::kRenewed: return "renewed";
    case EventKind::kOverdue: return "overdue";
  }
  return "";
}

TransferTable::TransferTable(const TableOptions& options) : options_(options) {}

void TransferTable::observe(TableObserver* observer) {
  MutexLock lock(observer_mutex_);
  observer_ = observer;
}

void TransferTable::tell(After what, const std::string& transfer_id) {
  if (what == After::kNothing) return;
  bool at_work = false;
  {
    MutexLock lock(observer_mutex_);
    if (observer_ != nullptr && what == After::kAllocated) observer_->on_allocated(transfer_id);
    if (observer_ != nullptr && what == After::kReleased) {
      at_work = observer_->on_released(transfer_id);
    }
  }
  if (what == After::kReleased && !at_work && counts()) end(EventKind::kSent, transfer_id, {});
}

Status TransferTable::expect(const std::string& transfer_id, const Expectation& expectation) {
  std::vector<After> todo;
  {
    MutexLock lock(mutex_);
    if (ended_.contains(transfer_id)) {
      return {Reason::kAlreadyExists, fmt::format("transfer {} has ended", transfer_id)};
    }
    if (!records_.contains(transfer_id) && records_.size() >= options_.max_transfers) {
      return {Reason::kTooManyTransfers,
              fmt::format("{} transfers are open", options_.max_transfers)};
    }
    Record& record = find_or_add(transfer_id)->second;
    if (record.expected) return {};
    record.expected = true;
    record.expectation = expectation;
    unlist(record);
    if (expectation.timeout > Duration::zero()) {
      record.deadline = Clock::now() + std::min(expectation.timeout, Deadline::kLongest);
      deadlines_.emplace(record.deadline, transfer_id);
    }
    parked_bytes_ -= std::exchange(record.parked_bytes, 0);
    const std::vector<NotifyMessage> parked = std::exchange(record.parked, {});
    for (const NotifyMessage& message : parked) todo.push_back(apply(message));
  }
  for (const After what : todo) tell(what, transfer_id);
  return {};
}

std::shared_ptr<const Allocation> TransferTable::allocation(const std::string& transfer_id) const {
  MutexLock lock(mutex_);
  const auto at = records_.find(transfer_id);
  return at != records_.end() ? at->second.allocation : nullptr;
}

void TransferTable::set_allocation(const std::string& transfer_id, Allocation allocation) {
  {
    MutexLock lock(mutex_);
    const auto at = find_or_add(transfer_id);
    at->second.allocation = std::make_shared<const Allocation>(std::move(allocation));
    at->second.writing = false;
    if (!at->second.expected) list_unmatched(at);
  }
  tell(After::kAllocated, transfer_id);
}

bool TransferTable::drop_allocation(const std::string& transfer_id) {
  MutexLock lock(mutex_);
  const auto at = records_.find(transfer_id);
  if (at == records_.end() || at->second.allocation == nullptr) return false;
  if (at->second.expected) {
    at->second.allocation.reset();
  } else {
    erase(at);
  }
  return true;
}

std::vector<std::string> TransferTable::allocated() const {
  MutexLock lock(mutex_);
  std::vector<std::string> ids;
  for (const auto& [id, record] : records_) {
    if (record.allocation != nullptr) ids.push_back(id);
  }
  return ids;
}

std::shared_ptr<const Allocation> TransferTable::begin_writing(const std::string& transfer_id) {
  MutexLock lock(mutex_);
  const auto at = records_.find(transfer_id);
  if (at == records_.end() || at->second.allocation == nullptr) return nullptr;
  at->second.writing = true;
  unlist(at->second);
  return at->second.allocation;
}

bool TransferTable::end(EventKind kind, const std::string& transfer_id, Status outcome) {
  MutexLock lock(mutex_);
  return end_locked(kind, transfer_id, std::move(outcome));
}

bool TransferTable::ended(const std::string& transfer_id) const {
  MutexLock lock(mutex_);
  return ended_.contains(transfer_id);
}

void TransferTable::forget(const std::string& transfer_id) {
  MutexLock lock(mutex_);
  forget_ended(transfer_id);
}

void TransferTable::mark_ended(const std::string& transfer_id) {
  MutexLock lock(mutex_);
  const auto at = records_.find(transfer_id);
  remember_ended(transfer_id, at != records_.end() && at->second.allocation != nullptr
                                  ? at->second.allocation->extras.incarnation.value_or("")
                                  : "");
  if (at != records_.end()) erase(at);
}

bool TransferTable::end_locked(EventKind kind, const std::string& transfer_id, Status outcome) {
  if (ended_.contains(transfer_id)) {
    rejects_.count(Reject::kDuplicate, fmt::format("a second end of {}", transfer_id));
    return false;
  }
  const auto at = records_.find(transfer_id);
  std::string incarnation;
  if (at != records_.end()) {
    if (at->second.allocation != nullptr) {
      incarnation = at->second.allocation->extras.incarnation.value_or("");
    }
    erase(at);
  }
  remember_ended(transfer_id, std::move(incarnation));
  count_end(kind, outcome.reason());
  if (!outcome.ok()) {
    log(LogLevel::kError, "moriio.transfer",
        fmt::format("{} ended: {}", transfer_id, outcome.to_string()));
  }
  if (!counts() && kind == EventKind::kSent) {
    queue_ack({transfer_id, 1});
  } else if (!counts() && outcome.ok()) {
    if (completions_.size() >= options_.max_queued) {
      rejects_.count(Reject::kFull, "completions that nobody takes");
      completions_.pop_front();
    }
    completions_.push_back(transfer_id);
  } else {
    events_.push_back({kind, transfer_id, std::move(outcome)});
  }
  return true;
}

void TransferTable::remember_ended(const std::string& transfer_id, std::string incarnation) {
  forget_ended(transfer_id);
  ended_order_.push_back({transfer_id, std::move(incarnation)});
  ended_[transfer_id] = std::prev(ended_order_.end());
  while (ended_order_.size() > options_.max_ended) {
    ended_.erase(ended_order_.front().transfer_id);
    ended_order_.pop_front();
  }
}

void TransferTable::forget_ended(const std::string& transfer_id) {
  const auto at = ended_.find(transfer_id);
  if (at == ended_.end()) return;
  ended_order_.erase(at->second);
  ended_.erase(at);
}

void TransferTable::count_end(EventKind kind, Reason reason) {
  for (EndCount& row : end_counts_) {
    if (row.kind == kind && row.reason == reason) {
      ++row.count;
      return;
    }
  }
  end_counts_.push_back({kind, reason, 1});
}

std::vector<TransferTable::EndCount> TransferTable::end_counts() const {
  MutexLock lock(mutex_);
  return end_counts_;
}

std::vector<TransferEvent> TransferTable::take_events() {
  MutexLock lock(mutex_);
  sweep(Clock::now());
  std::vector<TransferEvent> events(std::make_move_iterator(events_.begin()),
                                    std::make_move_iterator(events_.end()));
  events_.clear();
  for (const TransferEvent& event : events) {
    if (event.kind != EventKind::kRenewed) continue;
    if (const auto at = records_.find(event.transfer_id); at != records_.end()) {
      at->second.renewed = false;
    }
  }
  return events;
}

std::vector<TransferAck> TransferTable::take_acks() {
  MutexLock lock(mutex_);
  sweep(Clock::now());
  std::vector<TransferAck> acks(acks_.begin(), acks_.end());
  acks_.clear();
  return acks;
}

std::vector<std::string> TransferTable::take_completions() {
  MutexLock lock(mutex_);
  sweep(Clock::now());
  std::vector<std::string> ids(completions_.begin(), completions_.end());
  completions_.clear();
  return ids;
}

void TransferTable::add_ack(TransferAck ack) {
  MutexLock lock(mutex_);
  queue_ack(std::move(ack));
}

void TransferTable::queue_ack(TransferAck ack) {
  if (acks_.size() >= options_.max_queued) {
    rejects_.count(Reject::kFull, "acknowledgements that nobody takes");
    acks_.pop_front();
  }
  acks_.push_back(std::move(ack));
}

size_t TransferTable::size() const {
  MutexLock lock(mutex_);
  return records_.size();
}

TransferTable::Records::iterator TransferTable::find_or_add(const std::string& transfer_id) {
  return records_.try_emplace(transfer_id).first;
}

// Strangers' records make room for each other, never for those that were asked for.
void TransferTable::list_unmatched(Records::iterator at) {
  if (at->second.listed) return;
  const size_t most = counts() ? options_.max_unmatched : options_.max_transfers;
  while (unmatched_.size() >= most && !unmatched_.empty()) {
    rejects_.count(Reject::kFull, unmatched_.front());
    erase(records_.find(unmatched_.front()));
  }
  unmatched_.push_back(at->first);
  at->second.unmatched = std::prev(unmatched_.end());
  at->second.listed = true;
  at->second.listed_at = Clock::now();
}

void TransferTable::unlist(Record& record) {
  if (std::exchange(record.listed, false)) unmatched_.erase(record.unmatched);
}

void TransferTable::erase(Records::iterator at) {
  Record& record = at->second;
  unlist(record);
  parked_bytes_ -= record.parked_bytes;
  if (record.deadline != Clock::time_point{}) deadlines_.erase({record.deadline, at->first});
  records_.erase(at);
}

void TransferTable::sweep(Clock::time_point now) {
  while (!unmatched_.empty()) {
    const auto at = records_.find(unmatched_.front());
    if (now - at->second.listed_at < options_.unmatched_timeout) break;
    rejects_.count(Reject::kExpired, at->first);
    erase(at);
  }
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const std::string transfer_id = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    records_.find(transfer_id)->second.deadline = {};
    events_.push_back({EventKind::kOverdue, transfer_id, {}});
  }
}

}  // namespace stagelink::moriio
