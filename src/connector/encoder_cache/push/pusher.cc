#include "connector/encoder_cache/push/pusher.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include "base/log.h"
#include "base/text.h"
#include "connector/zmq/curve_keys.h"
#include "connector/zmq/port_shortage.h"

namespace stagelink::encoder_cache {
namespace {

constexpr std::string_view kPusherLog = "encoder cache push";
constexpr std::string_view kPushScheme = "tcp://";
constexpr size_t kMaxFailures = 4096;
constexpr size_t kMaxConsumers = 1024;
constexpr size_t kIdleLinks = 64;
constexpr size_t kMaxOrphans = 4096;
// A consumer that is busy is asked again, for as long as an answer would be waited for.
constexpr Duration kBusyPause = std::chrono::milliseconds(50);
constexpr Duration kPushLinger = std::chrono::milliseconds(200);

Result<Endpoint> consumer_endpoint(const std::string& consumer_zmq) {
  if (!check_producer_address(consumer_zmq).ok()) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("consumer_zmq \"{}\" is not tcp://HOST:PORT with a host that can be "
                              "connected to",
                              to_plain_text(consumer_zmq, 64)));
  }
  return parse_endpoint(std::string_view(consumer_zmq).substr(kPushScheme.size()));
}

}  // namespace

struct Pusher::Push {
  PushOrder order;
  Deadline until;
  std::optional<Ticket> ticket;  // Once it is reserved.
  uint64_t asked = 0;            // The reserve or complete that is not answered.
  uint64_t refreshed = 0;        // The sign of life that is not answered.
  uint64_t turn = 0;             // Handed on.
  pull::Piece piece;             // Once it is made.
  Duration ttl{};
  Time timer{};
  Time busy_until{};        // A consumer that is busy is asked again until then.
  bool asks_again = false;  // When its timer is due.
};

Result<std::unique_ptr<Pusher>> Pusher::create(const CacheOptions& options,
                                               pull::PullConnector& pull, CacheMetrics& metrics,
                                               std::string producer_zmq) {
  SL_ASSIGN(auto library, zmq::Library::load());
  std::shared_ptr<const zmq::CurveKeys> keys;
  if (!options.secret_file.empty()) {
    SL_ASSIGN(keys, zmq::CurveKeys::from_file(options.secret_file));
  }
  SL_ASSIGN(auto context, zmq::Context::create(std::move(library), std::move(keys)));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return Status(Reason::kNofile, "no descriptor for pushes");
  return std::unique_ptr<Pusher>(new Pusher(options, pull, metrics, std::move(producer_zmq),
                                            std::move(context), std::move(wake)));
}

Pusher::Pusher(const CacheOptions& options, pull::PullConnector& pull, CacheMetrics& metrics,
               std::string producer_zmq, std::shared_ptr<zmq::Context> context, UniqueFd wake)
    : options_(options),
      pull_(pull),
      metrics_(metrics),
      producer_zmq_(std::move(producer_zmq)),
      context_(std::move(context)),
      wake_(std::move(wake)),
      thread_([this] { run(); }) {}

Pusher::~Pusher() { close(); }

void Pusher::close() {
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    const Status why(Reason::kClosed, "the producer is closed");
    while (!pushes_.empty()) finish(*pushes_.begin()->second, why);
    stopping_ = true;
  }
  ::eventfd_write(wake_.get(), 1);
  thread_.join();
}

// --- What the producer says ---

Status Pusher::order(const PushOrder& order) {
  MutexLock lock(mutex_);
  if (Status status = admit(order); !status.ok()) {
    fail(order.transfer_id, order.mm_hash, status);
    return status;
  }
  auto& push = pushes_[order.transfer_id];
  push = std::make_unique<Push>(Push{.order = order, .until = Deadline::in(options_.pull_timeout)});
  by_hash_.emplace(order.mm_hash, push.get());
  ++consumers_[order.consumer_zmq];
  reserve(*push);
  return {};
}

void Pusher::reserve(Push& push) {
  set_timer(push, Deadline::Clock::now() + push.until.left());  // Until it is sent.
  push.asked = ask(push, ReserveAsk{.transfer_id = push.order.transfer_id,
                                    .mm_hash = push.order.mm_hash,
                                    .info = push.order.info,
                                    .identity = options_.identity,
                                    .wait = options_.space_timeout,
                                    .ticket = std::nullopt});
}

Status Pusher::admit(const PushOrder& order) {
  if (stopping_) return Status(Reason::kClosed, "the producer is closed");
  SL_TRY(check_transfer_id(order.transfer_id));
  SL_TRY(check_mm_hash(order.mm_hash));
  SL_TRY(check_embedding(order.info));
  SL_ASSIGN([[maybe_unused]] const Endpoint endpoint, consumer_endpoint(order.consumer_zmq));
  if (pushes_.contains(order.transfer_id)) {
    return Status(Reason::kAlreadyExists,
                  fmt::format("transfer {} is under way", to_plain_text(order.transfer_id, 64)));
  }
  const bool is_new = !consumers_.contains(order.consumer_zmq);
  if (pushes_.size() < options_.max_entries && (!is_new || consumers_.size() < kMaxConsumers)) {
    return {};
  }
  return Status(Reason::kBusy, fmt::format("{} embeddings to {} consumers are being pushed, no "
                                           "more can be (max_entries)",
                                           pushes_.size(), consumers_.size()));
}

void Pusher::made(std::string_view mm_hash, const EmbeddingInfo& info, const pull::Piece& piece) {
  MutexLock lock(mutex_);
  auto [at, end] = by_hash_.equal_range(mm_hash);
  while (at != end) {
    Push& push = *(at++)->second;
    if (push.piece) continue;
    if (push.order.info != info) {
      finish(push, Status(Reason::kIncompatible,
                          fmt::format("[{}] of {} was announced, and [{}] of {} was made",
                                      fmt::join(push.order.info.shape, ", "), push.order.info.dtype,
                                      fmt::join(info.shape, ", "), info.dtype)));
      continue;
    }
    push.piece = piece;
    if (push.ticket.has_value()) complete(push);
  }
}

void Pusher::failed(std::string_view mm_hash, const Status& why) {
  MutexLock lock(mutex_);
  auto [at, end] = by_hash_.equal_range(mm_hash);
  while (at != end) {
    Push& push = *(at++)->second;
    if (!push.piece) finish(push, why);
  }
}

void Pusher::cancel(std::string_view transfer_id) {
  MutexLock lock(mutex_);
  const auto found = pushes_.find(std::string(transfer_id));
  if (found == pushes_.end()) return;
  finish(*found->second, Status(Reason::kCancelled, "nobody wants it any more"));
}

uint64_t Pusher::pending() const {
  MutexLock lock(mutex_);
  return pushes_.size();
}

std::vector<PushFailure> Pusher::take_failures() {
  MutexLock lock(mutex_);
  std::vector<PushFailure> taken(failures_.begin(), failures_.end());
  failures_.clear();
  return taken;
}

// --- One push ---

uint64_t Pusher::ask(Push& push, PushAsk what) {
  const uint64_t id = next_ask_++;
  asks_.emplace(id, &push);
  const PushKind kind = std::holds_alternative<CompleteAsk>(what) ? PushKind::kComplete
                        : push.ticket.has_value()                 ? PushKind::kAtOnce
                                                                  : PushKind::kReserve;
  outgoing_.push_back({push.order.consumer_zmq, {encode_push(id, what), id, kind}});
  ::eventfd_write(wake_.get(), 1);
  return id;
}

// Hands it on to this one reader, and says so.
void Pusher::complete(Push& push) {
  const PushOrder& order = push.order;
  push.turn = next_turn_++;
  const pull::PutTerms terms{.readers = 1,
                             .ttl = push.until.left() + std::chrono::seconds(1),
                             .timeout = Duration::zero(),
                             .is_fast_path = true,
                             .interrupted = {}};
  const std::string key = hand_on_key(options_.identity, order.mm_hash, push.turn);
  if (const auto put = pull_.put_piece(key, push.piece, terms); !put.ok()) {
    finish(push, put.status());
    return;
  }
  push.busy_until = Time{};  // From when it is sent.
  say_complete(push);
}

// A reservation is answered when there is room, or there has been none for so long.
void Pusher::sent(const std::vector<uint64_t>& ids) {
  const Time now = Deadline::Clock::now();
  MutexLock lock(mutex_);
  for (const uint64_t id : ids) {
    const auto found = asks_.find(id);
    if (found == asks_.end() || found->second->asked != id) continue;  // A sign of life.
    Push& push = *found->second;
    if (push.busy_until == Time{}) push.busy_until = now + patience();
    if (push.ticket.has_value()) continue;
    set_timer(push, now + std::min(push.until.left(), patience()));
  }
}

void Pusher::say_complete(Push& push) {
  push.asked =
      ask(push, CompleteAsk{push.order.transfer_id, *push.ticket, producer_zmq_, push.turn});
}

void Pusher::ask_again(Push& push) {
  push.asks_again = false;
  if (!push.ticket.has_value()) return reserve(push);
  say_complete(push);
  set_timer(push, Deadline::Clock::now() + std::min(push.until.left(), push.ttl / 3));
}

void Pusher::refresh(Push& push) {
  if (push.refreshed != 0) {
    finish(push, Status(Reason::kPeerLost, fmt::format("the consumer at {} does not answer",
                                                       push.order.consumer_zmq)));
    return;
  }
  push.refreshed = ask(push, ReserveAsk{.transfer_id = push.order.transfer_id,
                                        .mm_hash = push.order.mm_hash,
                                        .info = push.order.info,
                                        .identity = options_.identity,
                                        .wait = std::nullopt,
                                        .ticket = push.ticket});
  set_timer(push, Deadline::Clock::now() + std::min(push.until.left(), push.ttl / 3));
}

void Pusher::answered(Push& push, const PushReply& reply) {
  const bool is_refresh = reply.id == push.refreshed;
  (is_refresh ? push.refreshed : push.asked) = 0;
  const Time now = Deadline::Clock::now();
  if (reply.status.reason() == Reason::kBusy && (is_refresh || now < push.busy_until)) {
    if (is_refresh) return;
    push.asks_again = true;
    set_timer(push, now + std::min(push.until.left(), kBusyPause));
  } else if (!reply.status.ok()) {
    // The refusal of a sign of life may overtake the outcome.
    if (!is_refresh || push.asked == 0) finish(push, reply.status);
  } else if (is_refresh) {
    return;
  } else if (reply.completed.completed) {
    finish(push, {});
  } else if (reply.reserved.cancelled) {
    push.ticket.reset();
    finish(push, Status(Reason::kCancelled, "its consumer does not want it any more"));
  } else if (reply.reserved.ready) {
    finish(push, {});
  } else {
    push.ticket = reply.reserved.ticket;
    push.ttl = std::max<Duration>(reply.reserved.ttl, std::chrono::milliseconds(30));
    set_timer(push, Deadline::Clock::now() + std::min(push.until.left(), push.ttl / 3));
    if (push.piece) complete(push);
  }
}

// Nobody will complete it: its consumer is told as soon as the secret is known.
void Pusher::answer_orphan(const PushReply& reply) {
  const auto found = orphans_.find(reply.id);
  if (found == orphans_.end()) return;
  auto [consumer, transfer] = std::move(found->second);
  orphans_.erase(found);
  if (!reply.status.ok() || reply.reserved.cancelled) return;
  outgoing_.push_back({consumer, {encode_push(0, CancelAsk{transfer, reply.reserved.ticket})}});
  ::eventfd_write(wake_.get(), 1);
}

void Pusher::set_timer(Push& push, Time at) {
  timers_.erase({push.timer, &push});
  push.timer = at;
  timers_.emplace(at, &push);
}

// The consumer is told unless it has told us, so that nobody there waits in vain.
void Pusher::finish(Push& push, const Status& outcome) {
  const PushOrder& order = push.order;
  if (!outcome.ok() && push.ticket.has_value()) {
    outgoing_.push_back(
        {order.consumer_zmq, {encode_push(0, CancelAsk{order.transfer_id, *push.ticket})}});
  }
  ::eventfd_write(wake_.get(), 1);  // It may have held up others.
  if (!outcome.ok() && !push.ticket.has_value() && asks_.contains(push.asked)) {
    if (orphans_.size() >= kMaxOrphans) orphans_.erase(orphans_.begin());
    orphans_.emplace(push.asked, std::make_pair(order.consumer_zmq, order.transfer_id));
  }
  if (push.turn != 0) {
    (void)pull_.cleanup(hand_on_key(options_.identity, order.mm_hash, push.turn));
  }
  if (outcome.ok()) {
    metrics_.count_push(Reason::kOk);
  } else {
    fail(order.transfer_id, order.mm_hash, outcome);
  }
  asks_.erase(push.asked);
  asks_.erase(push.refreshed);
  timers_.erase({push.timer, &push});
  auto [at, end] = by_hash_.equal_range(order.mm_hash);
  by_hash_.erase(std::find_if(at, end, [&](const auto& one) { return one.second == &push; }));
  const auto consumer = consumers_.find(order.consumer_zmq);
  if (--consumer->second == 0) consumers_.erase(consumer);
  pushes_.erase(pushes_.find(order.transfer_id));
}

void Pusher::fail(const std::string& transfer_id, const std::string& mm_hash, const Status& why) {
  metrics_.count_push(why.reason());
  if (why.code() == Code::kCancelled || why.reason() == Reason::kClosed) return;
  log(LogLevel::kWarning, kPusherLog,
      fmt::format("embedding {} of transfer {} was not pushed: {}", to_plain_text(mm_hash, 64),
                  to_plain_text(transfer_id, 64), why.to_string()));
  if (failures_.size() >= kMaxFailures) failures_.pop_front();
  failures_.push_back({transfer_id, mm_hash, why});
}

// --- The thread ---

void Pusher::run() {
  ::pthread_setname_np(::pthread_self(), "sl-ec-push");
  while (true) {
    take_outgoing();
    const Deadline outboxes = send_all();  // First: who cannot be reached is late for that reason.
    const Deadline timers = do_timers();
    {
      MutexLock lock(mutex_);
      if (stopping_) break;
    }
    wait(Deadline::earlier(timers, outboxes));
    for (const auto& [consumer, link] : links_) take_replies(*link);
  }
  links_.clear();
}

// When the next one is due.
Deadline Pusher::do_timers() {
  const Time now = Deadline::Clock::now();
  MutexLock lock(mutex_);
  while (!timers_.empty() && timers_.begin()->first <= now) {
    Push& push = *timers_.begin()->second;
    if (push.asks_again && !push.until.passed()) {
      ask_again(push);
    } else if (push.until.passed() || !push.ticket.has_value()) {
      finish(push, Status(Reason::kTimedOut, fmt::format("no answer of the consumer at {} in time",
                                                         push.order.consumer_zmq)));
    } else {
      refresh(push);
    }
  }
  if (timers_.empty()) return Deadline::in(Deadline::kLongest);
  return Deadline::after(now, timers_.begin()->first - now);
}

void Pusher::take_outgoing() {
  std::vector<Outgoing> outgoing;
  {
    MutexLock lock(mutex_);
    outgoing.swap(outgoing_);
    for (auto at = links_.begin(); links_.size() > kIdleLinks && at != links_.end();) {
      const bool is_idle = at->second->is_empty() && !consumers_.contains(at->first);
      at = is_idle ? links_.erase(at) : std::next(at);
    }
  }
  for (auto& [consumer, letter] : outgoing) {
    auto& link = links_[consumer];
    if (link == nullptr) {
      zmq::SocketLimits limits;
      limits.linger = kPushLinger;
      auto endpoint = consumer_endpoint(consumer);
      auto dealer = endpoint.ok() ? zmq::Dealer::connect(context_, *endpoint, limits)
                                  : Result<zmq::Dealer>(endpoint.status());
      if (!dealer.ok()) {
        links_.erase(consumer);
        lose(consumer, dealer.status());
        continue;
      }
      link = std::make_unique<PushLink>(*std::move(dealer), options_.control_timeout);
    }
    link->queue(std::move(letter));
  }
}

// When a message that finds no way out is late.
Deadline Pusher::send_all() {
  Deadline next = Deadline::in(Deadline::kLongest);
  for (auto at = links_.begin(); at != links_.end();) {
    const auto here = at++;
    PushLink& link = *here->second;
    if (link.is_held_up()) forget_ended(link);
    std::vector<uint64_t> ids;
    const Status status = link.send(ids);
    sent(ids);
    if (!status.ok()) {
      const std::string consumer = here->first;
      links_.erase(here);
      const auto endpoint = consumer_endpoint(consumer);
      const Status shortage = endpoint.ok() ? zmq::local_port_shortage(*endpoint) : Status();
      lose(consumer, shortage.ok() ? status : shortage);
    } else {
      next = Deadline::earlier(next, link.late());
    }
  }
  return next;
}

void Pusher::forget_ended(PushLink& link) {
  MutexLock lock(mutex_);
  for (std::set<uint64_t>& ids : link.unanswered()) {
    for (auto at = ids.begin(); at != ids.end();) {
      const bool is_awaited = asks_.contains(*at) || orphans_.contains(*at);
      at = is_awaited ? std::next(at) : ids.erase(at);
    }
  }
}

// Nothing reaches this consumer: none of its pushes does.
void Pusher::lose(const std::string& consumer, const Status& why) {
  MutexLock lock(mutex_);
  for (auto at = pushes_.begin(); at != pushes_.end();) {
    Push& push = *(at++)->second;
    if (push.order.consumer_zmq != consumer) continue;
    push.ticket.reset();
    finish(push, why);
  }
}

void Pusher::wait(const Deadline& until) {
  std::vector<zmq::PollItem> items;
  items.push_back({.fd = wake_.get(), .want_read = true});
  for (const auto& [consumer, link] : links_) {
    items.push_back({.socket = &link->socket(), .want_read = true, .want_write = link->may_send()});
  }
  if (Status status = zmq::poll(context_->library(), items, until); !status.ok()) {
    log_failure(kPusherLog, status);
  }
  eventfd_t ignored = 0;
  ::eventfd_read(wake_.get(), &ignored);
}

void Pusher::take_replies(PushLink& link) {
  while (const auto reply = link.receive()) {
    if (!reply->ok()) {
      metrics_.count_push(reply->status().reason());
      continue;
    }
    const PushReply& message = **reply;
    MutexLock lock(mutex_);
    const auto found = asks_.find(message.id);
    if (found == asks_.end()) {
      answer_orphan(message);
      continue;
    }
    Push& push = *found->second;
    asks_.erase(found);
    answered(push, message);
  }
}

}  // namespace stagelink::encoder_cache
