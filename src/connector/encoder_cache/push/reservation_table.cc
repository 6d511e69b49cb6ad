#include "connector/encoder_cache/push/reservation_table.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/random.h"
#include "base/text.h"

namespace stagelink::encoder_cache {

struct Reservation {
  std::string transfer_id;
  Ticket ticket;
  std::shared_ptr<Arrival> arrival;
  uint64_t turn = 0;
  ReservationTable::Time expires{};
  bool is_completed = false;  // Its producer has nothing left to do.
  bool is_released = false;   // Its request has nothing left to do.
  bool has_source = false;
  ReservationTable::Answer<Reserved> pending;  // Until there is room.
};

namespace {

// The time it takes tells nothing of where they differ.
uint64_t difference(const InstanceId& a, const InstanceId& b) noexcept {
  return (a.high ^ b.high) | (a.low ^ b.low);
}
bool same_ticket(const Ticket& a, const Ticket& b) noexcept {
  return (difference(a.reservation, b.reservation) | difference(a.secret, b.secret)) == 0;
}

std::string shown(std::string_view transfer_id) { return to_plain_text(transfer_id, 64); }

bool is_ready(const Arrival& arrival) noexcept { return arrival.state == Arrival::State::kReady; }

Reserved refused_reservation() {
  Reserved refused;
  refused.cancelled = true;
  return refused;
}

}  // namespace

ReservationTable::ReservationTable(const Limits& limits) : limits_(limits), ended_(limits.ended) {}

ReservationTable::~ReservationTable() = default;

// --- What producers say ---

void ReservationTable::reserve(const ReserveAsk& ask, Answer<Reserved> answer, Time now,
                               Aftermath& after) {
  const auto say = [&](Result<Reserved> result) {
    after.answers.push_back(
        [answer = std::move(answer), result = std::move(result)] { answer(result); });
  };
  if (Reservation* const known = find(ask.transfer_id); known != nullptr) {
    return refresh(*known, ask, answer, now, after);
  }
  if (auto* ended = ended_.find(ask.transfer_id); ended != nullptr && ended->is_refused) {
    ended->is_refused = false;
    return say(refused_reservation());
  }
  if (Status status = admit(ask); !status.ok()) return say(std::move(status));
  Reservation& reservation = add(ask, now);
  const auto& arrival = reservation.arrival;
  if (is_ready(*arrival)) {
    reservation.is_completed = true;
    set_expiry(reservation, now + limits_.ready_ttl);
    Reserved cached = reserved(reservation);
    cached.cached = true;
    after.events.push_back({ask.transfer_id, ask.mm_hash, {}});
    say(cached);
  } else if (arrival->transfers.size() > 1) {
    say(reserved(reservation));
  } else {
    const Duration wait = std::min(ask.wait.value_or(limits_.space_timeout), limits_.space_timeout);
    arrival->room_until = now + wait;
    set_expiry(reservation, arrival->room_until + limits_.ttl);
    reservation.pending = std::move(answer);
    after.to_room.push_back(arrival);
  }
}

// What is active is its writer's alone.
Status ReservationTable::check_refresh(const Reservation& reservation,
                                       const ReserveAsk& ask) const {
  const Arrival& arrival = *reservation.arrival;
  if (!ask.ticket.has_value()) {
    return Status(Reason::kAlreadyExists, fmt::format("transfer {} is active: only who reserved "
                                                      "it may refresh it, with its secret",
                                                      shown(ask.transfer_id)));
  }
  SL_TRY(check(&reservation, ask.transfer_id, *ask.ticket));
  if (arrival.mm_hash != ask.mm_hash || arrival.info != ask.info) {
    return Status(Reason::kIncompatible,
                  fmt::format("transfer {} was reserved for another embedding: {} of {} bytes",
                              shown(ask.transfer_id), to_plain_text(arrival.mm_hash, 64),
                              arrival.info.nbytes));
  }
  return {};
}

void ReservationTable::refresh(Reservation& reservation, const ReserveAsk& ask,
                               const Answer<Reserved>& answer, Time now, Aftermath& after) {
  if (const Status status = check_refresh(reservation, ask); !status.ok()) {
    after.answers.push_back([answer, status] { answer(status); });
    return;
  }
  const Duration ttl = is_ready(*reservation.arrival) ? limits_.ready_ttl : limits_.ttl;
  set_expiry(reservation, std::max(reservation.expires, now + ttl));
  after.answers.push_back([answer, now_reserved = reserved(reservation)] { answer(now_reserved); });
}

Status ReservationTable::admit(const ReserveAsk& ask) const {
  if (ask.ticket.has_value()) return check(nullptr, ask.transfer_id, *ask.ticket);
  if (reservations_.size() >= limits_.reservations) {
    return Status(Reason::kBusy, fmt::format("{} transfers are reserved here, no more can be",
                                             limits_.reservations));
  }
  const auto found = arrivals_.find(ask.mm_hash);
  if (found == arrivals_.end() || found->second->info == ask.info) return {};
  const EmbeddingInfo& info = found->second->info;
  return Status(Reason::kIncompatible,
                fmt::format("{} is here as [{}] of {}, and [{}] of {} is announced",
                            to_plain_text(ask.mm_hash, 64), fmt::join(info.shape, ", "), info.dtype,
                            fmt::join(ask.info.shape, ", "), ask.info.dtype));
}

Reservation& ReservationTable::add(const ReserveAsk& ask, Time now) {
  ended_.forget(ask.transfer_id);
  auto& arrival = arrivals_[ask.mm_hash];
  if (arrival == nullptr) {
    arrival = std::make_shared<Arrival>();
    arrival->mm_hash = ask.mm_hash;
    arrival->info = ask.info;
    ++queued_;
  }
  auto& reservation = reservations_[ask.transfer_id];
  reservation = std::make_unique<Reservation>();
  reservation->transfer_id = ask.transfer_id;
  reservation->ticket = {random_instance_id(), random_instance_id()};
  reservation->arrival = arrival;
  reservation->turn = next_turn_++;
  arrival->transfers.emplace(reservation->turn, reservation.get());
  ++arrival->leases;
  if (arrival->idle.has_value()) {
    idle_.erase(*arrival->idle);
    arrival->idle.reset();
  }
  set_expiry(*reservation, now + limits_.ttl);
  return *reservation;
}

Reserved ReservationTable::reserved(const Reservation& reservation) const {
  const Arrival& arrival = *reservation.arrival;
  Reserved reserved;
  reserved.ticket = reservation.ticket;
  reserved.nbytes = arrival.info.nbytes;
  reserved.ready = is_ready(arrival) || arrival.state == Arrival::State::kEnded;
  reserved.write = !reserved.ready && arrival.transfers.begin()->second == &reservation;
  reserved.ttl = limits_.ttl;
  return reserved;
}

void ReservationTable::complete(const CompleteAsk& ask, Answer<Completed> answer, Time,
                                Aftermath& after) {
  const auto say = [&](Result<Completed> result) {
    after.answers.push_back(
        [answer = std::move(answer), result = std::move(result)] { answer(result); });
  };
  Reservation* const reservation = find(ask.transfer_id);
  const auto* const ended = ended_.find(ask.transfer_id);
  if (reservation == nullptr && ended != nullptr && ended->why.ok()) {
    say(Completed{true, false});  // Asked twice.
    return;
  }
  if (Status status = check(reservation, ask.transfer_id, ask.ticket); !status.ok()) {
    say(std::move(status));
    return;
  }
  if (reservation->has_source) {
    say(Status(Reason::kBusy, fmt::format("transfer {} is being read", shown(ask.transfer_id))));
    return;
  }
  const auto arrival = reservation->arrival;
  if (is_ready(*arrival) || reservation->is_released) {
    reservation->is_completed = true;
    say(Completed{true, false});
    leave_if_over(*reservation, after);
    return;
  }
  reservation->has_source = true;
  arrival->sources.push_back(
      {ask.transfer_id, ask.producer_zmq, ask.generation, std::move(answer)});
  if (arrival->state == Arrival::State::kWaiting) read_next(arrival, after);
}

Result<bool> ReservationTable::cancel(const CancelAsk& ask, Aftermath& after) {
  Reservation* const reservation = find(ask.transfer_id);
  if (reservation == nullptr) return false;
  SL_TRY(check(reservation, ask.transfer_id, ask.ticket));
  if (is_ready(*reservation->arrival)) {
    // Its request may have it all the same.
    reservation->is_completed = true;
    leave_if_over(*reservation, after);
    return true;
  }
  end(*reservation, Status(Reason::kCancelled, "its producer gave it up"), false, after);
  return true;
}

std::optional<PushStatus> ReservationTable::status(std::string_view transfer_id) const {
  const Reservation* const reservation = find(transfer_id);
  if (reservation == nullptr) return std::nullopt;
  const Reserved now = reserved(*reservation);
  return PushStatus{reservation->arrival->mm_hash, reservation->arrival->info,
                    reservation->ticket.reservation, now.ready, now.write};
}

// Whether who says so is the writer of a reservation that there is.
Status ReservationTable::check(const Reservation* reservation, std::string_view transfer_id,
                               const Ticket& ticket) const {
  if (reservation != nullptr) {
    if (same_ticket(ticket, reservation->ticket)) return {};
    return Status(Reason::kAuthentication,
                  fmt::format("transfer {}: this is not the reservation and the secret that its "
                              "writer was told",
                              shown(transfer_id)));
  }
  const auto* const ended = ended_.find(std::string(transfer_id));
  if (ended == nullptr || ended->why.ok()) {
    return Status(Reason::kNotFound,
                  fmt::format("transfer {} is not reserved", shown(transfer_id)));
  }
  return Status(ended->why.reason(),
                fmt::format("transfer {} has ended: {}", shown(transfer_id), ended->why.message()));
}

// --- What the consumer's own threads found ---

void ReservationTable::room_found(const std::shared_ptr<Arrival>& arrival,
                                  Result<pull::Piece> piece, Time now, Aftermath& after) {
  if (arrival->state != Arrival::State::kQueued) {
    if (piece.ok()) after.freed.push_back(*std::move(piece));
    return;
  }
  if (!piece.ok()) {
    end(*arrival->transfers.begin()->second, piece.status(), false, after);
    if (arrival->state != Arrival::State::kQueued) return;
    arrival->room_until = now + limits_.space_timeout;
    after.to_room.push_back(arrival);
    return;
  }
  arrival->piece = *std::move(piece);
  set_state(*arrival, Arrival::State::kWaiting);
  for (const auto& [turn, reservation] : arrival->transfers) {
    if (reservation->pending == nullptr) continue;
    set_expiry(*reservation, now + limits_.ttl);
    after.answers.push_back([answer = std::exchange(reservation->pending, nullptr),
                             result = reserved(*reservation)] { answer(result); });
  }
  read_next(arrival, after);
}

void ReservationTable::read_next(const std::shared_ptr<Arrival>& arrival, Aftermath& after) {
  if (arrival->sources.empty()) return;
  set_state(*arrival, Arrival::State::kReading);
  after.to_read.push_back(arrival);
}

void ReservationTable::read_ended(const std::shared_ptr<Arrival>& arrival, const Status& outcome,
                                  Time now, Aftermath& after) {
  if (arrival->state != Arrival::State::kReading) return;
  if (outcome.ok()) {
    succeed(*arrival, now, after);
    settle(arrival, after);
    return;
  }
  set_state(*arrival, Arrival::State::kWaiting);
  const Arrival::Source source = std::move(arrival->sources.front());
  arrival->sources.pop_front();
  Reservation* const reservation = find(source.transfer_id);
  if (source.answer != nullptr && reservation != nullptr) {
    reservation->has_source = false;
    after.answers.push_back([answer = source.answer, outcome] { answer(outcome); });
    end(*reservation, outcome, false, after);
  }
  if (arrival->state == Arrival::State::kWaiting) read_next(arrival, after);
}

void ReservationTable::succeed(Arrival& arrival, Time now, Aftermath& after) {
  set_state(arrival, Arrival::State::kReady);
  Completed completed{true, true};
  for (const Arrival::Source& source : arrival.sources) {
    if (source.answer != nullptr) {
      Reservation* const reservation = find(source.transfer_id);
      reservation->has_source = false;
      reservation->is_completed = true;
      after.answers.push_back([answer = source.answer, completed] { answer(completed); });
    }
    completed.became_ready = false;
  }
  arrival.sources.clear();
  for (const auto& [turn, reservation] : arrival.transfers) {
    set_expiry(*reservation, now + limits_.ready_ttl);
    after.events.push_back({reservation->transfer_id, arrival.mm_hash, {}});
  }
}

void ReservationTable::expire(Time now, Aftermath& after) {
  while (!by_expiry_.empty() && by_expiry_.begin()->first <= now) {
    Reservation& reservation = *by_expiry_.begin()->second;
    if (reservation.has_source) {  // What reads it has a deadline of its own.
      set_expiry(reservation, now + limits_.ttl);
      continue;
    }
    if (reservation.is_released) {  // Its request has it: nobody misses the producer's word.
      reservation.is_completed = true;
      leave_if_over(reservation, after);
      continue;
    }
    ++expired_;
    const bool was_ready = is_ready(*reservation.arrival);
    end(reservation,
        Status(Reason::kExpired,
               was_ready ? "no request has come for it" : "its producer has given no sign of life"),
        false, after);
  }
}

std::optional<ReservationTable::Time> ReservationTable::next_expiry() const {
  if (by_expiry_.empty()) return std::nullopt;
  return by_expiry_.begin()->first;
}

uint64_t ReservationTable::evict(uint64_t bytes, Aftermath& after) {
  uint64_t freed = 0;
  while (freed < bytes && !idle_.empty()) {
    const std::shared_ptr<Arrival> arrival = idle_.front();
    freed += arrival->info.nbytes;
    drop(arrival, after);
  }
  return freed;
}

// --- What requests want ---

PushView ReservationTable::look(std::string_view transfer_id) const {
  if (const Reservation* const reservation = find(transfer_id); reservation != nullptr) {
    return {is_ready(*reservation->arrival) ? PushState::kReady : PushState::kWaiting, {}};
  }
  const auto* const ended = ended_.find(std::string(transfer_id));
  if (ended == nullptr || ended->why.ok() || ended->is_heard) return {};
  return {PushState::kEnded, ended->why};
}

std::shared_ptr<const Arrival> ReservationTable::find_ready(const std::string& mm_hash) const {
  const auto found = arrivals_.find(mm_hash);
  if (found == arrivals_.end() || !is_ready(*found->second)) return nullptr;
  return found->second;
}

void ReservationTable::expect(const std::string& transfer_id) {
  const auto* const ended = ended_.find(transfer_id);
  if (ended != nullptr && ended->is_refused) ended_.forget(transfer_id);
}

void ReservationTable::heard(const std::string& transfer_id) {
  if (auto* const ended = ended_.find(transfer_id); ended != nullptr) ended->is_heard = true;
}

void ReservationTable::release(const std::string& transfer_id, Aftermath& after) {
  Reservation* const reservation = find(transfer_id);
  if (reservation == nullptr) {
    refuse(transfer_id, after);  // What it got was here before its producer asked.
    return;
  }
  if (reservation->is_released) return;
  const auto arrival = reservation->arrival;
  reservation->is_released = true;
  --arrival->leases;
  leave_if_over(*reservation, after);
  settle(arrival, after);
}

void ReservationTable::refuse(const std::string& transfer_id, Aftermath& after) {
  const Status why(Reason::kCancelled, "nobody wants it any more");
  Reservation* const reservation = find(transfer_id);
  if (reservation != nullptr) end(*reservation, why, true, after);
  ended_.remember(transfer_id, {why, /*is_refused=*/reservation == nullptr, /*is_heard=*/true});
}

void ReservationTable::close(Aftermath& after) {
  const Status why(Reason::kClosed, "the consumer is closed");
  while (!reservations_.empty()) end(*reservations_.begin()->second, why, false, after);
  (void)evict(~uint64_t{0}, after);
}

PushUsage ReservationTable::usage() const {
  return {.reservations = reservations_.size(),
          .queued = queued_,
          .arrivals = arrivals_.size(),
          .idle = idle_.size(),
          .ended = ended_.size(),
          .promoted = promoted_,
          .expired = expired_};
}

// --- How they end ---

void ReservationTable::end(Reservation& reservation, const Status& why, bool is_refused,
                           Aftermath& after) {
  const auto arrival = reservation.arrival;
  if (reservation.pending != nullptr) {
    after.answers.push_back([answer = std::move(reservation.pending), why, is_refused] {
      is_refused ? answer(refused_reservation()) : answer(why);
    });
  }
  if (reservation.has_source) {
    const auto source =
        std::find_if(arrival->sources.begin(), arrival->sources.end(),
                     [&](const auto& one) { return one.transfer_id == reservation.transfer_id; });
    after.answers.push_back(
        [answer = std::exchange(source->answer, nullptr), why] { answer(why); });
    // The first one is being read, and leaves when that has ended.
    const bool is_read = arrival->state == Arrival::State::kReading;
    if (!is_read || source != arrival->sources.begin()) arrival->sources.erase(source);
  }
  if (!reservation.is_released) {
    after.events.push_back({reservation.transfer_id, arrival->mm_hash, why});
  }
  ended_.remember(reservation.transfer_id, {why});
  leave(reservation, after);
}

// Neither its producer nor its request has anything left to do.
void ReservationTable::leave_if_over(Reservation& reservation, Aftermath& after) {
  if (!reservation.is_completed || !reservation.is_released) return;
  ended_.remember(reservation.transfer_id, {});
  leave(reservation, after);
}

// Nothing is left to be said of it.
void ReservationTable::leave(Reservation& reservation, Aftermath& after) {
  const auto arrival = reservation.arrival;
  const bool was_writer = arrival->transfers.begin()->second == &reservation;
  arrival->transfers.erase(reservation.turn);
  if (!reservation.is_released) --arrival->leases;
  const bool is_open = !is_ready(*arrival) && arrival->state != Arrival::State::kEnded;
  if (was_writer && !arrival->transfers.empty() && is_open) ++promoted_;
  by_expiry_.erase({reservation.expires, &reservation});
  reservations_.erase(reservations_.find(reservation.transfer_id));
  settle(arrival, after);
}

void ReservationTable::settle(const std::shared_ptr<Arrival>& arrival, Aftermath& after) {
  if (arrival->state == Arrival::State::kEnded || arrival->leases > 0) return;
  if (!is_ready(*arrival)) {
    if (arrival->transfers.empty()) drop(arrival, after);
  } else if (queued_ > 0) {
    drop(arrival, after);  // Somebody waits for room.
  } else if (!arrival->idle.has_value()) {
    arrival->idle = idle_.insert(idle_.end(), arrival);
    if (idle_.size() > limits_.reservations) drop(idle_.front(), after);
  }
}

void ReservationTable::drop(const std::shared_ptr<Arrival>& arrival, Aftermath& after) {
  const std::shared_ptr<Arrival> held = arrival;
  set_state(*held, Arrival::State::kEnded);
  held->ended.store(true);
  held->sources.clear();
  if (held->piece) after.freed.push_back(std::exchange(held->piece, pull::Piece()));
  if (held->idle.has_value()) {
    idle_.erase(*held->idle);
    held->idle.reset();
  }
  const auto found = arrivals_.find(held->mm_hash);
  if (found != arrivals_.end() && found->second == held) arrivals_.erase(found);
}

void ReservationTable::set_state(Arrival& arrival, Arrival::State state) {
  if (arrival.state == Arrival::State::kQueued && state != Arrival::State::kQueued) --queued_;
  arrival.state = state;
}

void ReservationTable::set_expiry(Reservation& reservation, Time expires) {
  by_expiry_.erase({reservation.expires, &reservation});
  reservation.expires = expires;
  by_expiry_.emplace(expires, &reservation);
}

Reservation* ReservationTable::find(std::string_view transfer_id) const {
  const auto found = reservations_.find(std::string(transfer_id));
  return found == reservations_.end() ? nullptr : found->second.get();
}

}  // namespace stagelink::encoder_cache
