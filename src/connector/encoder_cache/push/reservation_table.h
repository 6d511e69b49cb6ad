#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "connector/encoder_cache/push/ended_transfers.h"
#include "connector/encoder_cache/push/push_messages.h"
#include "connector/pull/memory/piece.h"

namespace stagelink::encoder_cache {

struct Reservation;

// One embedding on its way here or already here, for all transfers of its hash.
struct Arrival {
  enum class State : uint8_t {
    kQueued,   // Waits for room.
    kWaiting,  // There is room; no producer has completed.
    kReading,  // From the producer of the first source.
    kReady,
    kEnded,  // Nobody wants it, or it was evicted.
  };
  struct Source {
    std::string transfer_id;
    std::string producer_zmq;
    uint64_t generation = 0;
    std::function<void(const Result<Completed>&)> answer;
  };

  std::string mm_hash;
  EmbeddingInfo info;
  std::atomic<bool> ended{false};  // For those who work for it without the table.

  // The table's.
  State state = State::kQueued;
  std::chrono::steady_clock::time_point room_until{};
  pull::Piece piece;
  std::map<uint64_t, Reservation*> transfers;  // By turn: the first one is the writer.
  size_t leases = 0;                           // Of transfers whose request has not got it.
  std::deque<Source> sources;                  // The first is read.
  std::optional<std::list<std::shared_ptr<Arrival>>::iterator> idle;
};

// What a transfer has come to.
struct PushEvent {
  std::string transfer_id;
  std::string mm_hash;
  Status outcome;  // Ok: it is ready.
};

struct PushUsage {
  uint64_t reservations = 0;
  uint64_t queued = 0;    // For room.
  uint64_t arrivals = 0;  // Hashes that have or want room.
  uint64_t idle = 0;      // Ready, and nobody's: the next to give way.
  uint64_t ended = 0;     // Transfers that are remembered.
  uint64_t promoted = 0;  // Followers that became writers, in all.
  uint64_t expired = 0;   // In all.
};

enum class PushState : uint8_t { kUnknown, kWaiting, kReady, kEnded };

struct PushView {
  PushState state = PushState::kUnknown;
  Status why;  // Of an ended one.
};

// The reservations of a consumer: which transfers there are, what each waits for, and what ends it.
// Pure: who calls it does what `Aftermath` says, once without locks, and says when.
//
//  1. An arrival has room from kWaiting on, and gives it back with its last transfer, or, if it is
//     ready, when it is evicted. An arrival that is ready and has no lease is idle.
//  2. The first producer that completes is read, whoever reserved first; the others have succeeded
//     as soon as it is there.
//  3. Every transfer ends in exactly one event, of which a table without room forgets none: what a
//     transfer has come to is looked up, not only told.
//
// Thread-safety: one call at a time.
class ReservationTable {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  struct Limits {
    size_t reservations = 16'384;
    size_t ended = 8192;
    Duration ttl = std::chrono::seconds(30);        // Of a reservation, from its last refresh.
    Duration ready_ttl = std::chrono::seconds(60);  // Of what is ready, until its request has it.
    Duration space_timeout = std::chrono::seconds(5);
  };
  // What is left to do, without the lock that guards the table: in this order.
  struct Aftermath {
    std::vector<pull::Piece> freed;
    std::vector<std::shared_ptr<Arrival>> to_room;
    std::vector<std::shared_ptr<Arrival>> to_read;
    std::vector<PushEvent> events;
    std::vector<std::function<void()>> answers;
  };
  template <typename T>
  using Answer = std::function<void(const Result<T>&)>;

  explicit ReservationTable(const Limits& limits);
  ReservationTable(const ReservationTable&) = delete;
  ReservationTable& operator=(const ReservationTable&) = delete;
  ~ReservationTable();

  // --- What producers say. Errors: already_exists (active), incompatible (another shape),
  // authentication (ticket), not_found, cancelled, busy, and what has ended it.
  void reserve(const ReserveAsk& ask, Answer<Reserved> answer, Time now, Aftermath& after);
  void complete(const CompleteAsk& ask, Answer<Completed> answer, Time now, Aftermath& after);
  Result<bool> cancel(const CancelAsk& ask, Aftermath& after);
  std::optional<PushStatus> status(std::string_view transfer_id) const;

  // --- What the consumer's own threads found.
  void room_found(const std::shared_ptr<Arrival>& arrival, Result<pull::Piece> piece, Time now,
                  Aftermath& after);
  void read_ended(const std::shared_ptr<Arrival>& arrival, const Status& outcome, Time now,
                  Aftermath& after);
  void expire(Time now, Aftermath& after);
  // When expire() has something to do next.
  std::optional<Time> next_expiry() const;
  // Drops idle ones, longest idle first, until `bytes` are free; how many are.
  uint64_t evict(uint64_t bytes, Aftermath& after);

  // --- What requests want.
  PushView look(std::string_view transfer_id) const;
  std::shared_ptr<const Arrival> find_ready(const std::string& mm_hash) const;
  void expect(const std::string& transfer_id);  // One that was refused may come after all.
  void heard(const std::string& transfer_id);   // Its request knows what has become of it.
  void release(const std::string& transfer_id, Aftermath& after);  // The request has it.
  // Nobody wants it: it ends, or its next reservation is answered so.
  void refuse(const std::string& transfer_id, Aftermath& after);
  void close(Aftermath& after);

  PushUsage usage() const;

 private:
  Reservation* find(std::string_view transfer_id) const;
  Status check(const Reservation* reservation, std::string_view transfer_id,
               const Ticket& ticket) const;
  Status check_refresh(const Reservation& reservation, const ReserveAsk& ask) const;
  void refresh(Reservation& reservation, const ReserveAsk& ask, const Answer<Reserved>& answer,
               Time now, Aftermath& after);
  Status admit(const ReserveAsk& ask) const;
  Reservation& add(const ReserveAsk& ask, Time now);
  Reserved reserved(const Reservation& reservation) const;
  void succeed(Arrival& arrival, Time now, Aftermath& after);
  void end(Reservation& reservation, const Status& why, bool is_refused, Aftermath& after);
  void leave_if_over(Reservation& reservation, Aftermath& after);
  void leave(Reservation& reservation, Aftermath& after);
  void settle(const std::shared_ptr<Arrival>& arrival, Aftermath& after);
  void drop(const std::shared_ptr<Arrival>& arrival, Aftermath& after);
  void read_next(const std::shared_ptr<Arrival>& arrival, Aftermath& after);
  void set_state(Arrival& arrival, Arrival::State state);
  void set_expiry(Reservation& reservation, Time expires);

  const Limits limits_;
  uint64_t next_turn_ = 1;
  std::unordered_map<std::string, std::unique_ptr<Reservation>> reservations_;
  std::unordered_map<std::string, std::shared_ptr<Arrival>> arrivals_;  // By hash.
  std::set<std::pair<Time, Reservation*>> by_expiry_;
  std::list<std::shared_ptr<Arrival>> idle_;  // Longest idle first.
  EndedTransfers ended_;
  size_t queued_ = 0;
  uint64_t promoted_ = 0;
  uint64_t expired_ = 0;
};

}  // namespace stagelink::encoder_cache
