#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "connector/pull/claim.h"
#include "connector/pull/pull_types.h"
#include "connector/pull/receiver/claim_state.h"
#include "connector/pull/receiver/meeting.h"
#include "connector/pull/receiver/sender_link.h"

namespace stagelink::pull {

using ClaimResults = std::vector<std::optional<Result<std::unique_ptr<ClaimState>>>>;

// Until when something is asked for.
struct AskTerms {
  Duration wait;      // For the put.
  Deadline deadline;  // For everything.
  const Interrupted& interrupted;
  Duration room = Deadline::kLongest;  // For space in the own pool.
};

// What one call asks of one sender: any number of keys, over one line.
//
// Thread-safety: one thread at a time; several may meet() for one call.
class SenderAsk {
 public:
  SenderAsk(std::shared_ptr<Home> home, std::shared_ptr<SenderLink> link, const AskTerms& terms,
            ClaimResults& results) noexcept;
  SenderAsk(SenderAsk&&) noexcept = default;

  const std::shared_ptr<SenderLink>& link() const noexcept { return link_; }
  void add(const GetRequest& request, size_t index);

  bool knows_sender();
  // Finds the sender's life; a failure is that of all keys.
  void meet();
  // The same on another thread, which writes `wake`, and for as long as the keys are waited for.
  void begin_meeting(const std::shared_ptr<const UniqueFd>& wake);
  bool is_meeting() const noexcept { return meeting_ != nullptr; }
  // If the meeting is over: sends the claims.
  void end_meeting();
  // Sends the claims.
  void ask();
  // Waits for the next answer, at most until something has to be looked at.
  void wait(const Deadline& deadline);
  // Takes what has come, without waiting.
  void take_ready();
  bool done() const noexcept { return pending_.empty(); }
  size_t pending() const noexcept { return pending_.size(); }
  // Ends what has had no answer in time.
  void look_at_clock();
  // Ends everything that has had no answer.
  void fail(const Status& status);
  zmq::PollItem poll_item() const noexcept { return lease_->poll_item(); }

 private:
  struct Pending {
    const GetRequest* request;
    size_t index;
    uint64_t id = 0;
  };

  void ask_omni();
  Result<std::unique_ptr<ClaimState>> query_omni(const GetRequest& request);
  void take(Result<std::optional<MessageSpan>> received);
  Status take_message(MessageSpan message);
  void take_grant(MessageSpan message);
  void take_denial(const Denial& denial);
  void lose(const Status& status);
  std::vector<Pending>::iterator find(uint64_t id);
  void finish(std::vector<Pending>::iterator pending, Result<std::unique_ptr<ClaimState>> outcome);
  Status named(const Pending& pending, const Status& status) const;

  const std::shared_ptr<Home> home_;
  const std::shared_ptr<SenderLink> link_;
  const AskTerms& terms_;
  ClaimResults& results_;
  std::vector<Pending> pending_;
  std::shared_ptr<SenderLife> life_;
  SenderLife::Lease lease_;  // Goes before the life.
  std::unique_ptr<Meeting> meeting_;
  bool was_known_ = false;  // The life was met by an earlier call, and may be over.
  Deadline answer_by_;
  Deadline::Clock::time_point sent_{};
};

}  // namespace stagelink::pull
