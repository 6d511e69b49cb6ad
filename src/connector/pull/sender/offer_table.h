#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/deadline.h"
#include "base/mutex.h"
#include "connector/pull/memory/room_signal.h"
#include "connector/pull/sender/offer.h"
#include "stagelink/status.h"

namespace stagelink::pull {

// Who claims, and how to answer.
//
// Thread-safety: all methods may run at the same time.
class Asker {
 public:
  virtual ~Asker() = default;
  // Never waits. False: it can no longer be reached.
  virtual bool answer(MessageSpan message) noexcept = 0;
};

// Why an offer is no longer offered.
enum class OfferEnd : uint8_t { kConsumed, kReplaced, kExpired, kCleaned, kClosed };
inline constexpr size_t kOfferEnds = 5;

struct OfferTerms {
  uint32_t readers = 1;  // 0: any number.
  std::optional<Deadline> ttl;
};

struct ClaimAsk {
  InstanceId receiver;
  uint64_t id = 0;
  uint64_t generation = 0;
  std::string_view key;
  Duration wait = Duration::zero();
  Duration hold = Duration::zero();  // How long the claim lasts. Zero: claim_timeout.
};

// What came of a claim, to be told to its asker.
struct ClaimOutcome {
  std::shared_ptr<Asker> asker;
  uint64_t id = 0;
  Duration parked = Duration::zero();
  Reason reason = Reason::kOk;
  std::shared_ptr<const OfferBody> offer;  // If it is ok.
};

struct TableUsage {
  uint64_t offered = 0;
  uint64_t claims = 0;
  uint64_t waiting = 0;
  std::array<uint64_t, kOfferEnds> ended{};  // Offers, since the start.
  uint64_t claims_expired = 0;
  uint64_t claims_dropped = 0;  // Their receivers have gone.
};

// The offers of one sender, who has claimed them, and who waits for which. It sends nothing itself:
// outcomes are returned, and never under its lock.
//
// Invariants: (1) an offer's body lives while it is offered or claimed; (2) a claim is taken only
// of what is offered; (3) nobody waits under a key that is offered, but for one generation that is
// not it, and nobody waits for a generation at all: generations never come again.
//
// Thread-safety: all methods may run at the same time.
class OfferTable {
 public:
  struct Limits {
    Duration claim_timeout = std::chrono::seconds(60);
    uint32_t max_waiting = 4096;
    uint32_t claims_of_offer = 64;
    uint32_t claims_of_receiver = 4096;
  };
  using Outcomes = std::vector<ClaimOutcome>;
  using Now = Deadline::Clock::time_point;

  // Each claim and each offer that ends may have made room, and is counted.
  OfferTable(const Limits& limits, std::shared_ptr<RoomSignal> room);
  OfferTable(const OfferTable&) = delete;
  OfferTable& operator=(const OfferTable&) = delete;

  // Offers it instead of what was offered under the key; gives those who waited for it. Errors:
  // invalid_state (closed).
  Status put(std::string_view key, std::shared_ptr<const OfferBody> body, const OfferTerms& terms,
             Outcomes& woken, Now now) SL_EXCLUDES(mutex_);

  // Nothing: the claim waits. Outcomes: ok; not_found (does not wait); superseded (another
  // generation); busy (bounds); closed.
  std::optional<ClaimOutcome> claim(const ClaimAsk& ask, const std::shared_ptr<Asker>& asker,
                                    Now now) SL_EXCLUDES(mutex_);
  // Idempotent. Whether there was such a claim; one that waits is withdrawn.
  bool release(const InstanceId& receiver, uint64_t id, bool consumed) SL_EXCLUDES(mutex_);
  // All claims that came through this asker.
  void drop(const Asker& asker) SL_EXCLUDES(mutex_);

  // Of peers that cannot say more than a key: ends the oldest claim that `receiver` has of an offer
  // of this key, as consumed.
  bool release_by_key(const InstanceId& receiver, std::string_view key) SL_EXCLUDES(mutex_);

  // `only_unclaimed`: if nobody has claimed it.
  bool cleanup(std::string_view key, uint64_t generation, bool only_unclaimed = false)
      SL_EXCLUDES(mutex_);
  // Whatever has come to its end; gives those who have waited in vain.
  void expire(Outcomes& ended, Now now) SL_EXCLUDES(mutex_);
  // Nothing ends by time before this.
  Now next_due() const SL_EXCLUDES(mutex_);

  // Retires everything, lets no new claim in, gives those who wait.
  void close(Outcomes& ended) SL_EXCLUDES(mutex_);
  // Until nobody has a claim; how many there are at the deadline.
  size_t wait_idle(const Deadline& deadline) SL_EXCLUDES(mutex_);
  // Takes all claims away.
  void drop_all() SL_EXCLUDES(mutex_);

  TableUsage usage() const SL_EXCLUDES(mutex_);

 private:
  struct Offer {
    std::string key;
    std::shared_ptr<const OfferBody> body;
    OfferTerms terms;
    uint32_t consumed = 0;
    uint32_t claims = 0;
    bool offered = true;
  };
  struct ClaimKey {
    InstanceId receiver;
    uint64_t id = 0;
    friend bool operator==(const ClaimKey&, const ClaimKey&) = default;
  };
  struct ClaimHash {
    size_t operator()(const ClaimKey& key) const noexcept {
      return key.receiver.low ^ (key.id * 0x9e3779b97f4a7c15ULL);
    }
  };
  struct ClaimRecord {
    std::shared_ptr<Offer> offer;
    std::shared_ptr<Asker> asker;
    Now end;
    uint64_t turn = 0;  // Counts claims.
  };
  struct Waiting {
    ClaimKey claim;
    std::string key;
    std::shared_ptr<Asker> asker;
    Now since;
    Now end;
  };
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const noexcept {
      return std::hash<std::string_view>()(text);
    }
  };
  using Claims = std::unordered_map<ClaimKey, ClaimRecord, ClaimHash>;
  using WaitingClaims = std::unordered_map<ClaimKey, Waiting, ClaimHash>;
  // What is to be dropped once the lock is free.
  using Garbage = std::vector<std::shared_ptr<const OfferBody>>;

  std::optional<Reason> refusal(const ClaimAsk& ask) const SL_REQUIRES(mutex_);
  void take(const ClaimKey& key, const std::shared_ptr<Offer>& offer,
            const std::shared_ptr<Asker>& asker, Now end) SL_REQUIRES(mutex_);
  void park(const ClaimAsk& ask, const std::shared_ptr<Asker>& asker, Now now) SL_REQUIRES(mutex_);
  void unpark(WaitingClaims::iterator waiting) SL_REQUIRES(mutex_);
  void wake(const std::shared_ptr<Offer>& offer, Outcomes& woken, Now now) SL_REQUIRES(mutex_);
  void end_claim(Claims::iterator claim, bool consumed, Garbage& garbage) SL_REQUIRES(mutex_);
  void retire(Offer& offer, OfferEnd how, Garbage& garbage) SL_REQUIRES(mutex_);
  void free_if_idle(Offer& offer, Garbage& garbage) SL_REQUIRES(mutex_);
  void due_at(Now when) SL_REQUIRES(mutex_) {
    if (when < next_due_) next_due_ = when;
  }

  const Limits limits_;
  const std::shared_ptr<RoomSignal> room_;
  mutable Mutex mutex_;
  CondVar idle_;
  bool closed_ SL_GUARDED_BY(mutex_) = false;
  uint64_t next_turn_ SL_GUARDED_BY(mutex_) = 1;
  Now next_due_ SL_GUARDED_BY(mutex_) = Now::max();
  std::unordered_map<std::string, std::shared_ptr<Offer>, TextHash, std::equal_to<>> offered_
      SL_GUARDED_BY(mutex_);
  Claims claims_ SL_GUARDED_BY(mutex_);
  WaitingClaims waiting_ SL_GUARDED_BY(mutex_);
  // Of each key, in the order in which they came.
  std::unordered_map<std::string, std::vector<ClaimKey>, TextHash, std::equal_to<>> waiting_by_key_
      SL_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, uint32_t> claims_by_receiver_ SL_GUARDED_BY(mutex_);
  TableUsage totals_ SL_GUARDED_BY(mutex_);
};

}  // namespace stagelink::pull
