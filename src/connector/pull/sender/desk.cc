#include "connector/pull/sender/desk.h"

#include <algorithm>
#include <utility>

#include "connector/pull/messages/omni_messages.h"

namespace stagelink::pull {
namespace {

// All peers of 0.30 together: they do not say who they are.
constexpr InstanceId kOmniReceiver{0, 0x30};

uint32_t whole_ms(Duration duration) noexcept {
  const auto ms = std::chrono::floor<std::chrono::milliseconds>(duration).count();
  return static_cast<uint32_t>(std::clamp<int64_t>(ms, 0, UINT32_MAX));
}

std::string_view why_not(Reason reason) noexcept {
  switch (reason) {
    case Reason::kNotFound: return "the sender offers nothing under this key";
    case Reason::kSuperseded: return "the sender offers another generation under this key, or none";
    case Reason::kBusy: return "the sender has too many claims, or too many that wait";
    case Reason::kRefused: return "the sender is closing";
    default: return "the claim was made already";
  }
}

// Between messages, so that none is allocated.
thread_local Message t_answer;
thread_local ClaimMessage t_claim;
thread_local Message t_answers;

// What goes to one asker: together if it takes that, as many as a message holds.
class Answers {
 public:
  Answers(Asker& asker, bool together) : asker_(asker), together_(together) {
    if (together_) begin_answers(t_answers);
  }
  ~Answers() { send(); }
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;

  // Who cannot be reached any more has lost its claims, or will by their time.
  void add(MessageSpan answer) {
    if (together_ && put(answer)) return;
    send();
    if (together_ && put(answer)) return;
    (void)asker_.answer(answer);  // By itself, also one that would not fit among others.
  }

 private:
  bool put(MessageSpan answer) {
    const bool fits = add_answer(answer, t_answers);
    has_some_ = has_some_ || fits;
    return fits;
  }
  void send() {
    if (!std::exchange(has_some_, false)) return;
    (void)asker_.answer(t_answers);
    begin_answers(t_answers);
  }
  Asker& asker_;
  const bool together_;
  bool has_some_ = false;
};

}  // namespace

Desk::Desk(OfferTable& table, Settings settings) : table_(table), settings_(std::move(settings)) {
  encode(settings_.welcome, welcome_);
}

void Desk::handle(MessageSpan message, const std::shared_ptr<Asker>& asker, bool greets) {
  if (settings_.compat_030 && greets && !is_pull_message(message)) {
    answer_omni(message, asker);
    return;
  }
  if (settings_.foreign != nullptr && greets && !is_pull_message(message) &&
      settings_.foreign(message, [asker](MessageSpan answer) { (void)asker->answer(answer); })) {
    return;
  }
  const auto type = message_type(message);
  if (!type.ok()) {
    refuse(0, type.status(), asker);
    return;
  }
  switch (*type) {
    case MessageType::kHello:
      if (greets) return welcome(message, asker);
      break;
    case MessageType::kClaim: return claim(message, asker);
    case MessageType::kRelease: return release(message, asker);
    default: break;
  }
  refuse(0, Status(Reason::kFrame, "not a message for a sender, or not at this door"), asker);
}

void Desk::welcome(MessageSpan message, const std::shared_ptr<Asker>& asker) {
  HelloMessage hello;
  if (const Status status = decode(message, hello); !status.ok()) return refuse(0, status, asker);
  (void)asker->answer(welcome_);
}

void Desk::claim(MessageSpan message, const std::shared_ptr<Asker>& asker) {
  ClaimMessage& ask = t_claim;
  if (const Status status = decode(message, ask); !status.ok()) return refuse(0, status, asker);
  if (ask.life != settings_.welcome.life) {
    refuse(ask.entries.front().id,
           Status(Reason::kRestarted, "the claim is for another life of this sender"), asker);
    return;
  }
  const auto now = Deadline::Clock::now();
  Answers answers(*asker, ask.takes_answers && ask.entries.size() > 1);
  for (const ClaimEntry& entry : ask.entries) {
    asked_.fetch_add(1, std::memory_order_relaxed);  // A count of its own.
    const auto outcome = table_.claim({.receiver = ask.receiver,
                                       .id = entry.id,
                                       .generation = entry.generation,
                                       .key = entry.key,
                                       .wait = std::chrono::milliseconds(ask.wait_ms)},
                                      asker, now);
    if (outcome.has_value()) answers.add(encode_outcome(*outcome));
  }
}

void Desk::release(MessageSpan message, const std::shared_ptr<Asker>& asker) {
  ReleaseMessage release;
  if (const Status status = decode(message, release); !status.ok()) {
    return refuse(0, status, asker);
  }
  if (release.life != settings_.welcome.life) return;  // It went with that life.
  for (const ReleaseEntry& entry : release.entries) {
    (void)table_.release(release.receiver, entry.id, entry.consumed);
  }
}

void Desk::tell(OfferTable::Outcomes outcomes) {
  for (const ClaimOutcome& outcome : outcomes) tell(outcome);
}

void Desk::tell(const ClaimOutcome& outcome) {
  // Who cannot be reached any more has lost its claims, or will by their time.
  (void)outcome.asker->answer(encode_outcome(outcome));
}

MessageSpan Desk::encode_outcome(const ClaimOutcome& outcome) const {
  Message& answer = t_answer;
  if (outcome.reason == Reason::kOk) {
    const Grant head{outcome.id, whole_ms(outcome.parked), whole_ms(settings_.claim_timeout), {}};
    encode_grant(head, outcome.offer->grant, answer);
  } else {
    // A peer that is told of a closed sender must not think that it is closed itself.
    const Reason told = outcome.reason == Reason::kClosed ? Reason::kRefused : outcome.reason;
    encode(Denial{outcome.id, told, std::string(why_not(told))}, answer);
  }
  return answer;
}

void Desk::refuse(uint64_t id, const Status& why, const std::shared_ptr<Asker>& asker) {
  refused_.fetch_add(1);
  Message answer;
  encode_refusal(Denial{id, why.reason(), std::string(why.message())}, answer);
  (void)asker->answer(answer);
}

// --- Peers of 0.30 ---

void Desk::answer_omni(MessageSpan message, const std::shared_ptr<Asker>& asker) {
  const auto ask = read_omni_request(message);
  if (!ask.has_value()) {
    refused_.fetch_add(1);
    (void)asker->answer(omni_word(kOmniAckError));
  } else if (ask->request == OmniRequest::kQuery) {
    (void)asker->answer(omni_query(ask->key, asker));
  } else if (ask->key.empty()) {
    refused_.fetch_add(1);
    (void)asker->answer(omni_word(kOmniAckError));
  } else {
    // Who had complete metadata has read without a query, and so without a claim.
    if (!table_.release_by_key(kOmniReceiver, ask->key)) (void)table_.cleanup(ask->key, 0);
    (void)asker->answer(omni_word(kOmniAckOk));
  }
}

Message Desk::omni_query(std::string_view key, const std::shared_ptr<Asker>& asker) {
  const auto outcome = table_.claim({.receiver = kOmniReceiver,
                                     .id = next_omni_id_.fetch_add(1),
                                     .generation = 0,
                                     .key = key,
                                     .wait = Duration::zero(),
                                     .hold = settings_.compat_hold},
                                    asker, Deadline::Clock::now());
  if (key.empty() || !outcome.has_value() || outcome->reason != Reason::kOk) {
    return omni_word(kOmniNotFound);
  }
  const OfferBody& offer = *outcome->offer;
  return omni_info({std::string(key), settings_.rpc_port, offer.bytes, offer.is_fast_path,
                    offer.addresses, offer.lengths});
}

}  // namespace stagelink::pull
