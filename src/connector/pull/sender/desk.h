#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "connector/pull/foreign.h"
#include "connector/pull/messages/messages.h"
#include "connector/pull/sender/offer_table.h"

namespace stagelink::pull {

// Answers what receivers say, whatever door they came through.
//
// Thread-safety: all methods may run at the same time.
class Desk {
 public:
  struct Settings {
    WelcomeMessage welcome;
    Duration claim_timeout;
    bool compat_030 = false;
    uint16_t rpc_port = 0;                    // Told to peers of 0.30.
    Duration compat_hold = Duration::zero();  // Of a claim of such a peer.
    ForeignMessages foreign;                  // Null: there are none.
  };
  Desk(OfferTable& table, Settings settings);
  Desk(const Desk&) = delete;
  Desk& operator=(const Desk&) = delete;

  // One message. `greets`: the door may say who this is; only one that checks who asks may.
  void handle(MessageSpan message, const std::shared_ptr<Asker>& asker, bool greets);
  void tell(OfferTable::Outcomes outcomes);

  uint16_t rpc_port() const noexcept { return settings_.rpc_port; }
  // Messages that made no sense, or were not for this life.
  uint64_t refused() const noexcept { return refused_.load(); }
  uint64_t claims_asked() const noexcept { return asked_.load(); }

 private:
  void welcome(MessageSpan message, const std::shared_ptr<Asker>& asker);
  void claim(MessageSpan message, const std::shared_ptr<Asker>& asker);
  void release(MessageSpan message, const std::shared_ptr<Asker>& asker);
  void tell(const ClaimOutcome& outcome);
  // Into a buffer of this thread.
  MessageSpan encode_outcome(const ClaimOutcome& outcome) const;
  void refuse(uint64_t id, const Status& why, const std::shared_ptr<Asker>& asker);
  void answer_omni(MessageSpan message, const std::shared_ptr<Asker>& asker);
  Message omni_query(std::string_view key, const std::shared_ptr<Asker>& asker);

  OfferTable& table_;
  const Settings settings_;
  Message welcome_;
  std::atomic<uint64_t> refused_{0};
  std::atomic<uint64_t> asked_{0};
  std::atomic<uint64_t> next_omni_id_{1};
};

}  // namespace stagelink::pull
