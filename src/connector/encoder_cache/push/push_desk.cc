#include "connector/encoder_cache/push/push_desk.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>

#include "base/log.h"
#include "base/text.h"
#include "connector/pull/metrics.h"

namespace stagelink::encoder_cache {
namespace {

constexpr size_t kMaxDeskJobs = 16'384;
constexpr size_t kMaxDeskBytes = 16 << 20;
constexpr uint32_t kMinDeskReaders = 8;
constexpr size_t kReadAtOnce = 64;
constexpr std::string_view kDeskLog = "encoder cache push";

ReservationTable::Limits limits_of(const CacheOptions& options) {
  ReservationTable::Limits limits;
  limits.reservations = options.max_entries;
  limits.ttl = options.reservation_ttl;
  limits.ready_ttl = std::max(options.reservation_ttl, options.push_wait_timeout);
  limits.space_timeout = options.space_timeout;
  return limits;
}

// The answer to a message, when all of its items have theirs.
class DeskReply {
 public:
  DeskReply(uint64_t id, bool is_batch, size_t items, pull::ForeignAnswer answer)
      : id_(id),
        is_batch_(is_batch),
        answer_(std::move(answer)),
        open_(items),
        results_(items, Result<std::string>(Status(Reason::kClosed, "not answered"))) {}

  void set(size_t item, Result<std::string> result) {
    std::string text;
    {
      MutexLock lock(mutex_);
      results_[item] = std::move(result);
      if (--open_ > 0) return;
      text = is_batch_ ? encode_batch_answer(id_, results_) : encode_answer(id_, results_.front());
    }
    answer_(std::as_bytes(std::span(text)));
  }

 private:
  const uint64_t id_;
  const bool is_batch_;
  const pull::ForeignAnswer answer_;
  Mutex mutex_;
  size_t open_ SL_GUARDED_BY(mutex_);
  std::vector<Result<std::string>> results_ SL_GUARDED_BY(mutex_);
};

Status same_identity(const std::string& theirs, const std::string& ours) {
  if (theirs == ours) return {};
  return Status(Reason::kIncompatible, fmt::format("the producer is `{}`, this consumer is `{}`",
                                                   to_plain_text(theirs, 512), ours));
}

// One item of a message, said to the table under its lock.
struct DeskItem {
  ReservationTable& table;
  const std::string& identity;
  ReservationTable::Aftermath& after;
  std::shared_ptr<DeskReply> reply;
  size_t item;
  ReservationTable::Time now = ReservationTable::Clock::now();

  void say(Result<std::string> result) const {
    after.answers.push_back(
        [reply = reply, item = item, result = std::move(result)] { reply->set(item, result); });
  }
  template <typename T>
  ReservationTable::Answer<T> answer() const {
    return [reply = reply, item = item](const Result<T>& result) {
      reply->set(item, result.ok() ? Result<std::string>(encode_result(*result))
                                   : Result<std::string>(result.status()));
    };
  }
  void operator()(const ReserveAsk& ask) const {
    if (Status status = same_identity(ask.identity, identity); !status.ok()) {
      log_failure(kDeskLog, status);
      say(std::move(status));
      return;
    }
    table.reserve(ask, answer<Reserved>(), now, after);
  }
  void operator()(const CompleteAsk& ask) const {
    table.complete(ask, answer<Completed>(), now, after);
  }
  void operator()(const CancelAsk& ask) const {
    const auto cancelled = table.cancel(ask, after);
    say(cancelled.ok() ? Result<std::string>(encode_cancelled(*cancelled))
                       : Result<std::string>(cancelled.status()));
  }
  void operator()(const StatusAsk& ask) const { say(encode_result(table.status(ask.transfer_id))); }
};

}  // namespace

PushDesk::PushDesk(Consumer& consumer, OnEvent on_event)
    : consumer_(consumer), on_event_(std::move(on_event)), table_(limits_of(consumer.options())) {
  threads_.emplace_back([this] { serve_messages(); });
  threads_.emplace_back([this] { find_room(); });
  // Each waits for one producer at a time, however long that one takes.
  for (uint32_t i = 0; i < std::max(consumer.options().load_threads, kMinDeskReaders); ++i) {
    threads_.emplace_back([this] { read_arrivals(); });
  }
}

PushDesk::~PushDesk() { close(); }

void PushDesk::close() {
  Aftermath after;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    jobs_.clear();
    job_bytes_ = 0;
    to_room_.clear();
    to_read_.clear();
    table_.close(after);
  }
  messages_.notify_all();
  room_.notify_all();
  reads_.notify_all();
  settle(after);
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

// --- Messages ---

bool PushDesk::take(std::span<const std::byte> message, const pull::ForeignAnswer& answer) {
  if (message.empty() || message.front() != std::byte{'{'}) return false;
  const std::string_view text(reinterpret_cast<const char*>(message.data()), message.size());
  Status refusal;
  if (message.size() > kMaxPushBytes) {
    refusal = Status(Reason::kFrame, fmt::format("a message has at most {} bytes", kMaxPushBytes));
  } else {
    MutexLock lock(mutex_);
    if (stopping_ || jobs_.size() >= kMaxDeskJobs || job_bytes_ + text.size() > kMaxDeskBytes) {
      refusal = Status(Reason::kBusy, "too many messages at a time");
    } else {
      job_bytes_ += text.size();
      jobs_.push_back({std::string(text), answer});
    }
  }
  if (refusal.ok()) {
    messages_.notify_one();
  } else {
    uint64_t id = 0;
    if (refusal.code() == Code::kBusy) (void)decode_push(text, id);
    const std::string said = encode_answer(id, refusal);
    answer(std::as_bytes(std::span(said)));
  }
  return true;
}

void PushDesk::serve_messages() {
  ::pthread_setname_np(::pthread_self(), "sl-ec-desk");
  while (true) {
    std::optional<Job> job;
    Aftermath after;
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      if (jobs_.empty()) {
        const auto next = table_.next_expiry();
        if (next.has_value()) {
          messages_.wait_until(mutex_, Deadline::in(*next - ReservationTable::Clock::now()));
        } else {
          messages_.wait(mutex_);
        }
      }
      if (!jobs_.empty()) {
        job = std::move(jobs_.front());
        jobs_.pop_front();
        job_bytes_ -= job->message.size();
      }
      table_.expire(ReservationTable::Clock::now(), after);
      queue(after);
    }
    settle(after);
    if (job.has_value()) serve(*job);
  }
}

void PushDesk::serve(const Job& job) {
  uint64_t id = 0;
  auto message = decode_push(job.message, id);
  if (!message.ok()) {
    const std::string answer = encode_answer(id, message.status());
    job.answer(std::as_bytes(std::span(answer)));
    return;
  }
  const size_t count = message->items.size();
  const auto reply = std::make_shared<DeskReply>(id, message->is_batch, count, job.answer);
  Aftermath after;
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    for (size_t i = 0; i < count; ++i) {
      const DeskItem item{table_, consumer_.options().identity, after, reply, i};
      if (message->items[i].ok()) {
        std::visit(item, *message->items[i]);
      } else {
        item.say(message->items[i].status());
      }
    }
    queue(after);
  }
  settle(after);
}

void PushDesk::queue(Aftermath& after) {
  if (stopping_) return;
  for (auto& arrival : after.to_room) to_room_.push_back(std::move(arrival));
  for (auto& arrival : after.to_read) to_read_.push_back(std::move(arrival));
  if (!after.to_room.empty()) room_.notify_one();
  if (!after.to_read.empty()) reads_.notify_all();
}

void PushDesk::settle(Aftermath& after) {
  after.freed.clear();
  for (const PushEvent& event : after.events) tell(event);
  for (const auto& answer : after.answers) answer();
}

void PushDesk::tell(const PushEvent& event) {
  const Reason reason = event.outcome.reason();
  consumer_.metrics().count_push(reason);
  // What could not be read has been logged where it was.
  if (reason == Reason::kExpired || event.outcome.code() == Code::kNoSpace ||
      event.outcome.code() == Code::kLimit) {
    log(LogLevel::kWarning, kDeskLog,
        fmt::format("embedding {} of transfer {} has not come: {}",
                    to_plain_text(event.mm_hash, 64), to_plain_text(event.transfer_id, 64),
                    event.outcome.to_string()));
  }
  on_event_(event);
}

// --- Room ---

void PushDesk::find_room() {
  ::pthread_setname_np(::pthread_self(), "sl-ec-room");
  while (true) {
    std::shared_ptr<Arrival> arrival;
    ReservationTable::Time until;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && to_room_.empty()) room_.wait(mutex_);
      if (stopping_) return;
      arrival = std::move(to_room_.front());
      to_room_.pop_front();
      until = arrival->room_until;
    }
    const uint64_t bytes = arrival->info.nbytes;
    const auto ended = [&arrival] { return arrival->ended.load(); };
    auto piece = consumer_.allocate(bytes, Duration::zero(), ended);
    if (!piece.ok() && piece.status().code() == Code::kNoSpace) {
      (void)give_way(bytes);
      // What is given up from now on goes back at once, for this thread waits.
      const Duration left = until - ReservationTable::Clock::now();
      piece = consumer_.allocate(bytes, std::max(left, Duration::zero()), ended);
    }
    Aftermath after;
    {
      MutexLock lock(mutex_);
      table_.room_found(arrival, std::move(piece), ReservationTable::Clock::now(), after);
      queue(after);
    }
    messages_.notify_one();  // The reservation expires sooner now.
    settle(after);
  }
}

// --- Reading ---

void PushDesk::read_arrivals() {
  ::pthread_setname_np(::pthread_self(), "sl-ec-take");
  while (true) {
    const Readings readings = take_to_read();
    if (readings.empty()) return;
    read(readings);
    MutexLock lock(mutex_);
    busy_producers_.erase(readings.front().place.producer_zmq);
    reads_.notify_all();
  }
}

// All that one producer has: one that does not answer holds up one thread and nobody else's, until
// there are as many of them as threads. Empty: it is over.
PushDesk::Readings PushDesk::take_to_read() {
  MutexLock lock(mutex_);
  Readings taken;
  while (!stopping_ && taken.empty()) {
    for (auto at = to_read_.begin(); at != to_read_.end() && taken.size() < kReadAtOnce;) {
      const Arrival& arrival = **at;
      if (arrival.state != Arrival::State::kReading) {
        at = to_read_.erase(at);  // Nobody wants it any more.
        continue;
      }
      const Arrival::Source& source = arrival.sources.front();
      if (taken.empty() ? busy_producers_.contains(source.producer_zmq)
                        : source.producer_zmq != taken.front().place.producer_zmq) {
        ++at;
        continue;
      }
      taken.push_back({*at, arrival.piece, {arrival.info, source.producer_zmq, source.generation}});
      at = to_read_.erase(at);
    }
    if (taken.empty()) reads_.wait(mutex_);
  }
  if (stopping_) return {};
  busy_producers_.insert(taken.front().place.producer_zmq);
  return taken;
}

void PushDesk::read(const Readings& readings) {
  std::vector<LoadRequest> requests;
  for (const Reading& reading : readings) {
    requests.push_back({.mm_hash = reading.arrival->mm_hash,
                        .producers = {reading.place},
                        .into = reading.piece.bytes(),
                        .is_handed_on = true});
  }
  const auto all_ended = [&readings] {
    return std::all_of(readings.begin(), readings.end(),
                       [](const Reading& reading) { return reading.arrival->ended.load(); });
  };
  const auto outcomes =
      consumer_.load(requests, {.timeout = Duration::zero(), .interrupted = all_ended});
  Aftermath after;
  {
    MutexLock lock(mutex_);
    const auto now = ReservationTable::Clock::now();
    for (size_t i = 0; i < readings.size(); ++i) {
      table_.read_ended(readings[i].arrival, outcomes[i].status(), now, after);
    }
    queue(after);
  }
  settle(after);
}

// --- What requests want ---

PushView PushDesk::look(std::string_view transfer_id) const {
  MutexLock lock(mutex_);
  return table_.look(transfer_id);
}

std::optional<Embedding> PushDesk::find(const std::string& mm_hash) const {
  MutexLock lock(mutex_);
  const auto arrival = table_.find_ready(mm_hash);
  if (arrival == nullptr) return std::nullopt;
  return Embedding{mm_hash, arrival->info, {}, arrival->piece, {}};
}

void PushDesk::expect(const std::string& transfer_id) {
  MutexLock lock(mutex_);
  table_.expect(transfer_id);
}

void PushDesk::heard(const std::string& transfer_id) {
  MutexLock lock(mutex_);
  table_.heard(transfer_id);
}

void PushDesk::release(const std::string& transfer_id) {
  Aftermath after;
  {
    MutexLock lock(mutex_);
    table_.release(transfer_id, after);
  }
  settle(after);
}

void PushDesk::refuse(const std::string& transfer_id) {
  Aftermath after;
  {
    MutexLock lock(mutex_);
    table_.refuse(transfer_id, after);
    queue(after);
  }
  settle(after);
}

uint64_t PushDesk::give_way(uint64_t bytes) {
  Aftermath after;
  uint64_t freed = 0;
  {
    MutexLock lock(mutex_);
    freed = table_.evict(bytes, after);
  }
  settle(after);
  return freed;
}

PushUsage PushDesk::usage() const {
  MutexLock lock(mutex_);
  return table_.usage();
}

void PushDesk::append_metrics(std::string& out, std::string_view labels) const {
  const PushUsage usage = this->usage();
  const auto sample = [&](std::string_view name, std::string_view help, std::string_view type,
                          uint64_t value) {
    pull::append_sample(out, name, help, type, labels, static_cast<double>(value));
  };
  sample("stagelink_ec_reservations", "Transfers that producers have reserved.", "gauge",
         usage.reservations);
  sample("stagelink_ec_reservations_queued", "Hashes that wait for room.", "gauge", usage.queued);
  sample("stagelink_ec_idle", "Embeddings that are here and nobody's: they give way first.",
         "gauge", usage.idle);
  sample("stagelink_ec_promoted_total", "Followers that became writers.", "counter",
         usage.promoted);
  sample("stagelink_ec_expired_total", "Reservations that ended by their time.", "counter",
         usage.expired);
}

}  // namespace stagelink::encoder_cache
