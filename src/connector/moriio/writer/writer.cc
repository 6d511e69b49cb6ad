#include "connector/moriio/writer/writer.h"

#include <utility>

#include <fmt/format.h>

#include "base/fork_guard.h"
#include "connector/moriio/writer/write_transfer.h"

namespace stagelink::moriio {
namespace {

constexpr size_t kMaxFinished = 4096;  // States remembered after the end.

}  // namespace

std::string_view write_state_name(WriteState state) noexcept {
  switch (state) {
    case WriteState::kUnknown: return "unknown";
    case WriteState::kWaitingBlocks: return "waiting_blocks";
    case WriteState::kPosting: return "posting";
    case WriteState::kInFlight: return "in_flight";
    case WriteState::kNotifying: return "notifying";
    case WriteState::kDone: return "done";
    case WriteState::kFailed: return "failed";
    case WriteState::kExpired: return "expired";
    case WriteState::kAborted: return "aborted";
  }
  return "";
}

Writer::Writer(const WriterOptions& options, std::shared_ptr<Wrapper> wrapper,
               std::shared_ptr<WriterHost> host)
    : options_(options),
      wrapper_(std::move(wrapper)),
      host_(std::move(host)),
      fork_token_(ForkGuard::arm()) {
  wrapper_->table().observe(this);
  thread_ = std::thread([this] { run(); });
}

Writer::~Writer() { close(); }

void Writer::close() {
  if (ForkGuard::forked(fork_token_)) {
    // The thread is the parent's.
    if (thread_.joinable()) thread_.detach();
    return;
  }
  MutexLock join_lock(join_mutex_);
  wrapper_->table().observe(nullptr);
  {
    MutexLock lock(mutex_);
    closing_ = true;
    wake_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

Result<bool> Writer::schedule(WriteTask task, const Expectation& expectation) {
  if (ForkGuard::forked(fork_token_)) return forked_status("the writer");
  const std::string id = task.transfer_id;
  {
    MutexLock lock(mutex_);
    if (const auto refused = refusal(task)) return *refused;
  }
  // Without the lock: it may tell us that the blocks are known. The task, once it is there, finds
  // them by itself.
  const Status expected = wrapper_->table().expect(id, expectation);
  if (expected.code() == Code::kAlreadyExists) return false;
  if (!expected.ok()) return expected;
  {
    MutexLock lock(mutex_);
    if (const auto refused = refusal(task)) return *refused;
    const auto [at, fresh] = scheduled_.try_emplace(id);
    at->second.layers.insert(task.layer);
    if (fresh) unsealed_.push_back(id);
    ++queued_;
    items_.push_back({Item::Kind::kTask, id, std::move(task), {}});
    wake_.notify_all();
  }
  // A release that came between the two found nobody at work.
  if (wrapper_->table().ended(id)) start_abort(id, "the transfer has ended");
  return true;
}

// Why a task is not taken; nullopt if it is.
std::optional<Result<bool>> Writer::refusal(const WriteTask& task) const {
  if (closing_) return Status(Reason::kClosed, "the writer is closed");
  if (queued_ >= options_.max_queued) {
    return Status(Reason::kLimit, fmt::format("{} layers wait to be written", queued_));
  }
  const auto at = scheduled_.find(task.transfer_id);
  if (at == scheduled_.end()) return std::nullopt;
  if (at->second.layers.contains(task.layer)) return false;
  if (!at->second.sealed) return std::nullopt;
  return Status(Reason::kInvalidState,
                fmt::format("{} is sealed, {} comes too late", task.transfer_id, task.layer));
}

bool Writer::is_scheduled(const std::string& transfer_id, const std::string& layer) const {
  MutexLock lock(mutex_);
  const auto at = scheduled_.find(transfer_id);
  return at != scheduled_.end() && at->second.layers.contains(layer);
}

void Writer::seal_pending() {
  MutexLock lock(mutex_);
  for (std::string& id : std::exchange(unsealed_, {})) {
    const auto at = scheduled_.find(id);
    if (at == scheduled_.end() || std::exchange(at->second.sealed, true)) continue;
    items_.push_back({Item::Kind::kSeal, std::move(id), {}, {}});
  }
  wake_.notify_all();
}

void Writer::seal(const std::string& transfer_id) {
  MutexLock lock(mutex_);
  const auto at = scheduled_.find(transfer_id);
  if (at == scheduled_.end() || std::exchange(at->second.sealed, true)) return;
  items_.push_back({Item::Kind::kSeal, transfer_id, {}, {}});
  wake_.notify_all();
}

bool Writer::push(Item item) {
  MutexLock lock(mutex_);
  if (!scheduled_.contains(item.transfer_id)) return false;
  items_.push_back(std::move(item));
  wake_.notify_all();
  return true;
}

void Writer::start_abort(const std::string& transfer_id, std::string why) {
  push({Item::Kind::kStop, transfer_id, {}, Status(Reason::kCancelled, std::move(why))});
}

Status Writer::abort(const std::string& transfer_id, Duration timeout) {
  start_abort(transfer_id, "aborted by the caller");
  const Deadline deadline = Deadline::in(timeout);
  MutexLock lock(mutex_);
  while (scheduled_.contains(transfer_id)) {
    if (ended_.wait_until(mutex_, deadline)) continue;
    return {Reason::kTimedOut, fmt::format("{} is still being stopped", transfer_id)};
  }
  return {};
}

WriteState Writer::state(const std::string& transfer_id) const {
  MutexLock lock(mutex_);
  if (const auto at = scheduled_.find(transfer_id); at != scheduled_.end()) return at->second.state;
  const auto at = finished_.find(transfer_id);
  return at != finished_.end() ? at->second : WriteState::kUnknown;
}

size_t Writer::active() const {
  MutexLock lock(mutex_);
  return scheduled_.size();
}

void Writer::on_allocated(const std::string& transfer_id) {
  push({Item::Kind::kBlocks, transfer_id, {}, {}});
}

bool Writer::on_released(const std::string& transfer_id) {
  return push({Item::Kind::kStop,
               transfer_id,
               {},
               Status(Reason::kCancelled, "the consumer does not want it any more")});
}

void Writer::set_state(Transfer& transfer, WriteState state, Duration limit) {
  transfer.state = state;
  transfer.deadline = Deadline::in(limit);
  MutexLock lock(mutex_);
  if (const auto at = scheduled_.find(transfer.transfer_id); at != scheduled_.end()) {
    at->second.state = state;
  }
}

void Writer::finish(Transfer& transfer, WriteState state, Status outcome) {
  const std::string id = transfer.transfer_id;
  if (outcome.ok()) bytes_written_.fetch_add(transfer.flight.bytes_landed());
  const size_t unplanned = transfer.pending.size();
  timers_.erase({transfer.timer, id});
  flying_.erase(id);
  attention_.erase(id);
  transfers_.erase(id);
  wrapper_->table().end(EventKind::kSent, id, std::move(outcome));
  // Layers of it that are still on their way to the thread. Let go of without the lock: a ticket
  // may wait for whoever asks us something.
  std::deque<Item> late;
  MutexLock lock(mutex_);
  queued_ -= unplanned;
  for (Item& item : std::exchange(items_, {})) {
    if (item.transfer_id == id && item.kind == Item::Kind::kTask) --queued_;
    (item.transfer_id == id ? late : items_).push_back(std::move(item));
  }
  scheduled_.erase(id);
  finished_[id] = state;
  finished_order_.push_back(id);
  if (finished_order_.size() > kMaxFinished) {
    finished_.erase(finished_order_.front());
    finished_order_.pop_front();
  }
  ended_.notify_all();
}

}  // namespace stagelink::moriio
