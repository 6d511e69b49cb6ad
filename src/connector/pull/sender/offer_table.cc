#include "connector/pull/sender/offer_table.h"

#include <algorithm>
#include <utility>

namespace stagelink::pull {

OfferTable::OfferTable(const Limits& limits, std::shared_ptr<RoomSignal> room)
    : limits_(limits), room_(std::move(room)) {}

Status OfferTable::put(std::string_view key, std::shared_ptr<const OfferBody> body,
                       const OfferTerms& terms, Outcomes& woken, Now now) {
  Garbage garbage;
  auto offer = std::make_shared<Offer>();
  offer->key = std::string(key);
  offer->body = std::move(body);
  offer->terms = terms;
  MutexLock lock(mutex_);
  if (closed_) return Status(Reason::kClosed, "the connector is closed");
  auto& place = offered_[offer->key];
  if (place != nullptr) {
    const std::shared_ptr<Offer> old = std::exchange(place, nullptr);
    old->offered = false;
    ++totals_.ended[static_cast<size_t>(OfferEnd::kReplaced)];
    free_if_idle(*old, garbage);
  }
  place = offer;
  if (terms.ttl.has_value()) due_at(now + terms.ttl->left());
  wake(offer, woken, now);
  return {};
}

std::optional<ClaimOutcome> OfferTable::claim(const ClaimAsk& ask,
                                              const std::shared_ptr<Asker>& asker, Now now) {
  const auto answer = [&](Reason reason, std::shared_ptr<const OfferBody> body = nullptr) {
    return ClaimOutcome{asker, ask.id, Duration::zero(), reason, std::move(body)};
  };
  MutexLock lock(mutex_);
  if (const auto why = refusal(ask)) return answer(*why);
  const auto found = offered_.find(ask.key);
  if (found != offered_.end()) {
    const std::shared_ptr<Offer>& offer = found->second;
    if (ask.generation != 0 && ask.generation != offer->body->generation) {
      return answer(Reason::kSuperseded);
    }
    if (offer->claims >= limits_.claims_of_offer) return answer(Reason::kBusy);
    const Duration hold = ask.hold > Duration::zero() ? ask.hold : limits_.claim_timeout;
    take({ask.receiver, ask.id}, offer, asker, now + hold);
    return answer(Reason::kOk, offer->body);
  }
  if (ask.generation != 0) return answer(Reason::kSuperseded);
  if (ask.wait <= Duration::zero()) return answer(Reason::kNotFound);
  if (waiting_.size() >= limits_.max_waiting) return answer(Reason::kBusy);
  park(ask, asker, now);
  return std::nullopt;
}

// What refuses a claim before its key is looked at.
std::optional<Reason> OfferTable::refusal(const ClaimAsk& ask) const {
  if (closed_) return Reason::kClosed;
  const ClaimKey key{ask.receiver, ask.id};
  if (claims_.contains(key) || waiting_.contains(key)) return Reason::kAlreadyExists;
  const auto count = claims_by_receiver_.find(ask.receiver.low);
  if (count != claims_by_receiver_.end() && count->second >= limits_.claims_of_receiver) {
    return Reason::kBusy;
  }
  return std::nullopt;
}

void OfferTable::take(const ClaimKey& key, const std::shared_ptr<Offer>& offer,
                      const std::shared_ptr<Asker>& asker, Now end) {
  claims_.emplace(key, ClaimRecord{offer, asker, end, next_turn_++});
  ++offer->claims;
  ++claims_by_receiver_[key.receiver.low];
  due_at(end);
}

void OfferTable::park(const ClaimAsk& ask, const std::shared_ptr<Asker>& asker, Now now) {
  const ClaimKey key{ask.receiver, ask.id};
  const Now end = now + ask.wait;
  waiting_.emplace(key, Waiting{key, std::string(ask.key), asker, now, end});
  waiting_by_key_[std::string(ask.key)].push_back(key);
  due_at(end);
}

void OfferTable::unpark(WaitingClaims::iterator waiting) {
  const auto same_key = waiting_by_key_.find(waiting->second.key);
  std::erase(same_key->second, waiting->first);
  if (same_key->second.empty()) waiting_by_key_.erase(same_key);
  waiting_.erase(waiting);
}

void OfferTable::wake(const std::shared_ptr<Offer>& offer, Outcomes& woken, Now now) {
  const auto same_key = waiting_by_key_.find(offer->key);
  if (same_key == waiting_by_key_.end()) return;
  const std::vector<ClaimKey> keys = std::move(same_key->second);
  waiting_by_key_.erase(same_key);
  for (const ClaimKey& key : keys) {
    const auto at = waiting_.find(key);
    ClaimOutcome outcome{std::move(at->second.asker), key.id, now - at->second.since, Reason::kOk,
                         offer->body};
    waiting_.erase(at);
    if (offer->claims < limits_.claims_of_offer) {
      take(key, offer, outcome.asker, now + limits_.claim_timeout);
    } else {
      outcome.reason = Reason::kBusy;
      outcome.offer = nullptr;
    }
    woken.push_back(std::move(outcome));
  }
}

bool OfferTable::release(const InstanceId& receiver, uint64_t id, bool consumed) {
  Garbage garbage;
  MutexLock lock(mutex_);
  const ClaimKey key{receiver, id};
  if (const auto claim = claims_.find(key); claim != claims_.end()) {
    end_claim(claim, consumed, garbage);
    return true;
  }
  const auto waiting = waiting_.find(key);
  if (waiting == waiting_.end()) return false;
  unpark(waiting);
  return true;
}

bool OfferTable::release_by_key(const InstanceId& receiver, std::string_view key) {
  Garbage garbage;
  MutexLock lock(mutex_);
  auto oldest = claims_.end();
  for (auto at = claims_.begin(); at != claims_.end(); ++at) {
    if (at->first.receiver != receiver || at->second.offer->key != key) continue;
    if (oldest == claims_.end() || at->second.turn < oldest->second.turn) oldest = at;
  }
  if (oldest == claims_.end()) return false;
  end_claim(oldest, true, garbage);
  return true;
}

void OfferTable::drop(const Asker& asker) {
  Garbage garbage;
  MutexLock lock(mutex_);
  for (auto at = claims_.begin(); at != claims_.end();) {
    const auto claim = at++;
    if (claim->second.asker.get() != &asker) continue;
    ++totals_.claims_dropped;
    end_claim(claim, false, garbage);
  }
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    const auto waiting = at++;
    if (waiting->second.asker.get() == &asker) unpark(waiting);
  }
}

void OfferTable::end_claim(Claims::iterator claim, bool consumed, Garbage& garbage) {
  const std::shared_ptr<Offer> offer = std::move(claim->second.offer);
  const auto count = claims_by_receiver_.find(claim->first.receiver.low);
  if (--count->second == 0) claims_by_receiver_.erase(count);
  claims_.erase(claim);
  --offer->claims;
  if (consumed) ++offer->consumed;
  if (offer->offered && offer->terms.readers != 0 && offer->consumed >= offer->terms.readers) {
    retire(*offer, OfferEnd::kConsumed, garbage);
  } else {
    free_if_idle(*offer, garbage);
  }
  if (claims_.empty()) idle_.notify_all();
}

// Takes an offer that is offered out of the table. The caller keeps the Offer itself alive.
void OfferTable::retire(Offer& offer, OfferEnd how, Garbage& garbage) {
  offer.offered = false;
  ++totals_.ended[static_cast<size_t>(how)];
  offered_.erase(offered_.find(offer.key));
  free_if_idle(offer, garbage);
}

void OfferTable::free_if_idle(Offer& offer, Garbage& garbage) {
  room_->made();
  if (!offer.offered && offer.claims == 0) garbage.push_back(std::move(offer.body));
}

bool OfferTable::cleanup(std::string_view key, uint64_t generation, bool only_unclaimed) {
  Garbage garbage;
  MutexLock lock(mutex_);
  const auto found = offered_.find(key);
  if (found == offered_.end()) return false;
  const std::shared_ptr<Offer> offer = found->second;
  if (generation != 0 && generation != offer->body->generation) return false;
  if (only_unclaimed && offer->claims != 0) return false;
  retire(*offer, OfferEnd::kCleaned, garbage);
  return true;
}

void OfferTable::expire(Outcomes& ended, Now now) {
  Garbage garbage;
  MutexLock lock(mutex_);
  if (now < next_due_) return;
  next_due_ = Now::max();
  for (auto at = offered_.begin(); at != offered_.end();) {
    const std::shared_ptr<Offer> offer = (at++)->second;
    if (!offer->terms.ttl.has_value()) continue;
    if (offer->terms.ttl->passed()) {
      retire(*offer, OfferEnd::kExpired, garbage);
    } else {
      due_at(now + offer->terms.ttl->left());
    }
  }
  for (auto at = claims_.begin(); at != claims_.end();) {
    const auto claim = at++;
    if (claim->second.end > now) {
      due_at(claim->second.end);
      continue;
    }
    ++totals_.claims_expired;
    end_claim(claim, false, garbage);
  }
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    const auto waiting = at++;
    if (waiting->second.end > now) {
      due_at(waiting->second.end);
      continue;
    }
    ended.push_back({waiting->second.asker, waiting->first.id, now - waiting->second.since,
                     Reason::kNotFound, nullptr});
    unpark(waiting);
  }
}

OfferTable::Now OfferTable::next_due() const {
  MutexLock lock(mutex_);
  return next_due_;
}

void OfferTable::close(Outcomes& ended) {
  Garbage garbage;
  MutexLock lock(mutex_);
  closed_ = true;
  while (!offered_.empty()) {
    const std::shared_ptr<Offer> offer = offered_.begin()->second;
    retire(*offer, OfferEnd::kClosed, garbage);
  }
  for (const auto& [key, waiting] : waiting_) {
    ended.push_back({waiting.asker, key.id, Duration::zero(), Reason::kClosed, nullptr});
  }
  waiting_.clear();
  waiting_by_key_.clear();
}

size_t OfferTable::wait_idle(const Deadline& deadline) {
  MutexLock lock(mutex_);
  while (!claims_.empty() && idle_.wait_until(mutex_, deadline)) {
  }
  return claims_.size();
}

void OfferTable::drop_all() {
  Garbage garbage;
  MutexLock lock(mutex_);
  while (!claims_.empty()) end_claim(claims_.begin(), false, garbage);
}

TableUsage OfferTable::usage() const {
  MutexLock lock(mutex_);
  TableUsage usage = totals_;
  usage.offered = offered_.size();
  usage.claims = claims_.size();
  usage.waiting = waiting_.size();
  return usage;
}

}  // namespace stagelink::pull
