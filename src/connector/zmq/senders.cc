#include "connector/zmq/senders.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include "base/log.h"
#include "connector/zmq/port_shortage.h"

namespace stagelink::zmq {
namespace {

Status closed() { return {Reason::kClosed, "the senders are closed"}; }

}  // namespace

// One address, its socket and what waits for it.
struct Senders::Peer {
  Dealer dealer;
  std::list<Item> waiting;
  Deadline::Clock::time_point used = Deadline::Clock::now();
};

Result<std::unique_ptr<Senders>> Senders::create(std::shared_ptr<Context> context,
                                                 const SenderOptions& options) {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return Status(Reason::kNofile, "no descriptor for the senders");
  std::unique_ptr<Senders> senders(new Senders(std::move(context), options, std::move(wake)));
  senders->thread_ = std::thread([self = senders.get()] { self->run(); });
  return senders;
}

Senders::Senders(std::shared_ptr<Context> context, const SenderOptions& options, UniqueFd wake)
    : context_(std::move(context)), options_(options), wake_(std::move(wake)) {}

Senders::~Senders() { close(); }

Status Senders::send(const Endpoint& peer, Bytes frame, Duration timeout, Done done) {
  const size_t before = pending_.fetch_add(1);
  if (before >= options_.max_queued) {
    pending_.fetch_sub(1);
    return {Reason::kLimit, fmt::format("{} messages wait to be sent", options_.max_queued)};
  }
  Item item{peer, std::move(frame), Deadline::in(timeout), std::move(done)};
  // Only where no other message waits, which this one would overtake.
  if (before == 0 && send_now(item)) return {};
  {
    MutexLock lock(mutex_);
    if (closing_) {
      pending_.fetch_sub(1);
      return closed();
    }
    queued_.push_back(std::move(item));
  }
  ::eventfd_write(wake_.get(), 1);
  return {};
}

// True if a connection that stood already has taken the item; nothing has happened otherwise.
bool Senders::send_now(Item& item) {
  {
    const std::unique_lock lock(sockets_, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    const auto at = peers_.find(item.peer.to_string());
    if (at == peers_.end() || !at->second->waiting.empty()) return false;
    const FrameSpan frame = item.frame;
    at->second->used = Deadline::Clock::now();
    const Deadline now = Deadline::in(Duration::zero());
    if (!at->second->dealer.send(std::span(&frame, 1), now).ok()) return false;
  }
  finish(std::move(item), Status());
  return true;
}

Status Senders::send_and_wait(const Endpoint& peer, Bytes frame, Duration timeout) {
  struct Outcome {
    Mutex mutex;
    CondVar changed;
    bool known SL_GUARDED_BY(mutex) = false;
    Status status SL_GUARDED_BY(mutex);
  };
  const auto outcome = std::make_shared<Outcome>();
  SL_TRY(send(peer, std::move(frame), timeout, [outcome](const Status& status) {
    MutexLock lock(outcome->mutex);
    outcome->known = true;
    outcome->status = status;
    outcome->changed.notify_all();
  }));
  MutexLock lock(outcome->mutex);
  while (!outcome->known) outcome->changed.wait(outcome->mutex);
  return outcome->status;
}

void Senders::close() {
  MutexLock join_lock(join_mutex_);
  {
    MutexLock lock(mutex_);
    closing_ = true;
  }
  ::eventfd_write(wake_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

void Senders::run() {
  ::pthread_setname_np(::pthread_self(), "sl-notify-send");
  while (true) {
    const bool peers_wait = push_all();
    {
      MutexLock lock(mutex_);
      if (closing_ && queued_.empty()) break;
      if (!queued_.empty()) continue;
    }
    wait_for_room(peers_wait);
  }
  std::map<std::string, std::unique_ptr<Peer>> peers;
  {
    const std::lock_guard lock(sockets_);
    peers.swap(peers_);
    peers_open_.store(0);
  }
  for (auto& [address, peer] : peers) {
    for (Item& item : peer->waiting) finish(std::move(item), closed());
  }
}

// True if a peer has messages that it has not taken.
bool Senders::push_all() {
  std::list<Ended> ended;
  bool peers_wait = false;
  {
    const std::lock_guard lock(sockets_);
    take_queued();
    for (auto& [address, peer] : peers_) {
      push(*peer);
      peers_wait = peers_wait || !peer->waiting.empty();
    }
    ended.swap(ended_);
  }
  for (Ended& each : ended) finish(std::move(each.item), each.outcome);
  return peers_wait;
}

void Senders::take_queued() {
  std::list<Item> items;
  {
    MutexLock lock(mutex_);
    items.swap(queued_);
  }
  while (!items.empty()) {
    Status why;
    Peer* const peer = find_or_open(items.front().peer, why);
    if (peer == nullptr) {
      ended_.push_back({std::move(items.front()), why});
      items.pop_front();
    } else {
      peer->waiting.splice(peer->waiting.end(), items, items.begin());
    }
  }
}

Senders::Peer* Senders::find_or_open(const Endpoint& address, Status& why) {
  const std::string key = address.to_string();
  if (const auto at = peers_.find(key); at != peers_.end()) return at->second.get();
  if (peers_.size() >= options_.max_peers && !make_room()) {
    why = Status(Reason::kTooManyPeers,
                 fmt::format("messages wait for {} peers already", options_.max_peers));
    return nullptr;
  }
  auto dealer = Dealer::connect(context_, address, {.linger = options_.linger});
  if (!dealer.ok()) {
    why = dealer.status();
    return nullptr;
  }
  auto peer = std::make_unique<Peer>(Peer{*std::move(dealer), {}});
  peers_open_.fetch_add(1);
  return peers_.emplace(key, std::move(peer)).first->second.get();
}

// Closes the socket that has been idle for longest. What it has sent still goes out (linger).
bool Senders::make_room() {
  auto oldest = peers_.end();
  for (auto at = peers_.begin(); at != peers_.end(); ++at) {
    if (!at->second->waiting.empty()) continue;
    if (oldest == peers_.end() || at->second->used < oldest->second->used) oldest = at;
  }
  if (oldest == peers_.end()) return false;
  peers_.erase(oldest);
  peers_open_.fetch_sub(1);
  return true;
}

void Senders::push(Peer& peer) {
  while (!peer.waiting.empty()) {
    Item& item = peer.waiting.front();
    const FrameSpan frame = item.frame;
    const Status outcome = peer.dealer.send(std::span(&frame, 1), Deadline::in(Duration::zero()));
    if (outcome.reason() == Reason::kTimedOut) {
      // Not connected, or the peer does not read: those that are due have failed.
      if (!item.deadline.passed()) return;
      Status why = local_port_shortage(item.peer);
      if (why.ok()) {
        why = Status(Reason::kTimedOut,
                     fmt::format("{} did not take the message in time", item.peer.to_string()));
      }
      ended_.push_back({std::move(item), std::move(why)});
    } else {
      ended_.push_back({std::move(item), outcome});
    }
    peer.used = Deadline::Clock::now();
    peer.waiting.pop_front();
  }
}

Deadline Senders::wait_limit() const {
  Deadline limit = Deadline::in(Deadline::kLongest);
  for (const auto& [address, peer] : peers_) {
    if (!peer->waiting.empty()) limit = Deadline::earlier(limit, peer->waiting.front().deadline);
  }
  return limit;
}

void Senders::wait_for_room(bool peers_wait) {
  std::vector<PollItem> items = {{.fd = wake_.get(), .want_read = true}};
  std::unique_lock lock(sockets_, std::defer_lock);
  if (peers_wait) lock.lock();
  for (const auto& [address, peer] : peers_) {
    if (!peer->waiting.empty()) items.push_back({.socket = &peer->dealer, .want_write = true});
  }
  if (const Status status = poll(context_->library(), items, wait_limit()); !status.ok()) {
    log_failure("moriio.senders", status);
  }
  eventfd_t ignored = 0;
  if (items.front().readable) ::eventfd_read(wake_.get(), &ignored);
}

void Senders::finish(Item item, const Status& outcome) {
  pending_.fetch_sub(1);
  if (outcome.ok()) {
    sent_.fetch_add(1);
  } else {
    failed_.fetch_add(1);
    log_failure("moriio.senders",
                Status(outcome.reason(),
                       fmt::format("to {}: {}", item.peer.to_string(), outcome.message())));
  }
  if (item.done) item.done(outcome);
}

}  // namespace stagelink::zmq
