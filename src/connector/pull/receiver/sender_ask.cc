#include "connector/pull/receiver/sender_ask.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/random.h"
#include "base/text.h"
#include "connector/pull/messages/omni_messages.h"
#include "connector/pull/messages/stamp.h"

namespace stagelink::pull {
namespace {

constexpr Duration kOmniFirstPause = std::chrono::milliseconds(1);
constexpr Duration kOmniLongestPause = std::chrono::milliseconds(20);

// Unique among the claims of this process, and not to be guessed by others.
uint64_t next_claim_id() noexcept {
  static std::atomic<uint64_t> next{random_u64() | 1};
  return next.fetch_add(1);
}

uint32_t ms_rounded_up(Duration wait) noexcept {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(wait).count();
  return static_cast<uint32_t>(std::clamp<int64_t>(ms, 0, kMaxWaitMs));
}

}  // namespace

SenderAsk::SenderAsk(std::shared_ptr<Home> home, std::shared_ptr<SenderLink> link,
                     const AskTerms& terms, ClaimResults& results) noexcept
    : home_(std::move(home)),
      link_(std::move(link)),
      terms_(terms),
      results_(results),
      answer_by_(terms.deadline) {}

void SenderAsk::add(const GetRequest& request, size_t index) {
  pending_.push_back({&request, index});
}

bool SenderAsk::knows_sender() {
  life_ = link_->known();
  was_known_ = life_ != nullptr;
  return was_known_;
}

void SenderAsk::meet() {
  auto life = link_->life(terms_.deadline);
  if (!life.ok()) return fail(life.status());
  life_ = *std::move(life);
}

void SenderAsk::begin_meeting(const std::shared_ptr<const UniqueFd>& wake) {
  const Deadline until = Deadline::earlier(terms_.deadline, Deadline::in(terms_.wait));
  meeting_ = std::make_unique<Meeting>(home_, link_, terms_.deadline, until, wake);
}

void SenderAsk::end_meeting() {
  if (meeting_ == nullptr || !meeting_->is_over()) return;
  auto life = meeting_->take();
  meeting_.reset();
  if (!life.ok()) return fail(life.status());
  life_ = *std::move(life);
  ask();
}

void SenderAsk::ask() {
  if (done()) return;
  if (life_->is_omni()) return ask_omni();
  auto lease = life_->line();
  if (!lease.ok()) return lose(lease.status());
  lease_ = *std::move(lease);
  thread_local Message t_claims;
  thread_local ClaimMessage t_claim_message;
  ClaimMessage& message = t_claim_message;
  message.receiver = home_->receiver;
  message.life = life_->welcome().life;
  message.takes_answers = true;
  message.wait_ms = ms_rounded_up(std::min<Duration>(terms_.wait, terms_.deadline.left()));
  sent_ = Deadline::Clock::now();
  answer_by_ = Deadline::earlier(terms_.deadline,
                                 Deadline::after(sent_, terms_.wait + home_->options.ask_timeout));
  for (size_t first = 0; first < pending_.size(); first += kMaxClaimEntries) {
    const size_t count = std::min(kMaxClaimEntries, pending_.size() - first);
    message.entries.clear();
    for (size_t i = first; i < first + count; ++i) {
      pending_[i].id = next_claim_id();
      const PullMetadata* const metadata = pending_[i].request->metadata;
      message.entries.push_back({pending_[i].id, metadata != nullptr ? metadata->generation : 0,
                                 pending_[i].request->key});
    }
    encode(message, t_claims);
    if (const Status sent = lease_->send(t_claims, answer_by_); !sent.ok()) return lose(sent);
  }
}

void SenderAsk::wait(const Deadline& deadline) {
  take(lease_->receive(Deadline::earlier(answer_by_, deadline), home_->stop.get()));
}

void SenderAsk::take_ready() { take(lease_->receive(Deadline::in(Duration::zero()), -1)); }

void SenderAsk::take(Result<std::optional<MessageSpan>> received) {
  if (!received.ok()) return lose(received.status());
  if (!received->has_value()) return;
  if (const Status status = take_message(**received); !status.ok()) {
    lease_.spoil();
    fail(status);
  }
  // Only now: with the lease goes the message.
  if (pending_.empty()) lease_ = SenderLife::Lease();
}

// A failure is that of the line.
Status SenderAsk::take_message(MessageSpan message) {
  SL_ASSIGN(const MessageType type, message_type(message));
  if (type == MessageType::kAnswers) {
    thread_local std::vector<MessageSpan> t_answers;
    SL_TRY(decode_answers(message, t_answers));
    for (const MessageSpan answer : t_answers) SL_TRY(take_message(answer));
    return {};
  }
  if (type == MessageType::kGrant) {
    take_grant(message);
    return {};
  }
  Denial denial;
  if (type == MessageType::kDenial) {
    SL_TRY(decode(message, denial));
    take_denial(denial);
    return {};
  }
  if (type != MessageType::kRefusal) {
    return Status(Reason::kFrame, fmt::format("a sender answers a claim with a message of type {}",
                                              static_cast<int>(type)));
  }
  SL_TRY(decode(message, denial));
  if (denial.id != 0 && find(denial.id) == pending_.end()) return {};  // Of an earlier call.
  const Status status(denial.reason, fmt::format("the sender {} refuses: {}",
                                                 link_->sender().to_string(), denial.why));
  if (status.code() == Code::kPeerLost) {
    lose(status);
    return {};
  }
  return status;
}

void SenderAsk::take_grant(MessageSpan message) {
  auto state = std::make_unique<ClaimState>(home_, life_, lease_.line());
  Grant grant;
  std::swap(grant.body, state->body);
  const Status status = decode(message, grant);
  const auto pending = find(grant.id);
  state->id = grant.id;
  state->body = std::move(grant.body);
  if (pending == pending_.end()) return;  // Given up before; the state ends it.
  if (!status.ok()) return finish(pending, named(*pending, status));
  // Counted from before we asked, so that it never ends later here than there.
  state->until =
      Deadline::after(sent_, std::chrono::milliseconds(uint64_t{grant.parked_ms} + grant.claim_ms));
  state->digest = key_digest(pending->request->key);
  finish(pending, std::move(state));
}

void SenderAsk::take_denial(const Denial& denial) {
  const auto pending = find(denial.id);
  if (pending == pending_.end()) return;
  const bool waited = denial.reason == Reason::kNotFound && terms_.wait > Duration::zero();
  const Status status =
      waited ? Status(Reason::kTimedOut,
                      fmt::format("it was not put within {}", format_duration(terms_.wait)))
             : Status(denial.reason, denial.why);
  finish(pending, named(*pending, status));
}

// The line, or the life behind it, has ended. One that an earlier call met is met anew: the sender
// may have been started again since.
void SenderAsk::lose(const Status& status) {
  lease_.spoil();
  if (status.scope() != Scope::kPeer && status.code() != Code::kCorrupt) return fail(status);
  life_->set_over();
  if (!std::exchange(was_known_, false)) return fail(status);
  meet();
  ask();
}

void SenderAsk::look_at_clock() {
  if (done() || is_meeting() || !answer_by_.passed()) return;
  const bool silent = !terms_.deadline.passed();
  if (silent) {
    return fail(Status(Reason::kStopped,
                       fmt::format("the sender does not answer within {} (see `ask_timeout`)",
                                   format_duration(home_->options.ask_timeout))));
  }
  fail(Status(Reason::kTimedOut, "it was not put in time, or its sender does not answer"));
}

void SenderAsk::fail(const Status& status) {
  std::vector<ReleaseEntry> withdrawn;
  for (const Pending& pending : pending_) {
    if (pending.id != 0) withdrawn.push_back({pending.id, false});
    results_[pending.index].emplace(named(pending, status));
  }
  pending_.clear();
  lease_ = SenderLife::Lease();
  if (!withdrawn.empty() && life_ != nullptr && !life_->is_over()) life_->release(withdrawn);
}

std::vector<SenderAsk::Pending>::iterator SenderAsk::find(uint64_t id) {
  return std::find_if(pending_.begin(), pending_.end(),
                      [id](const Pending& pending) { return pending.id == id; });
}

void SenderAsk::finish(std::vector<Pending>::iterator pending,
                       Result<std::unique_ptr<ClaimState>> outcome) {
  results_[pending->index].emplace(std::move(outcome));
  *pending = pending_.back();
  pending_.pop_back();
}

Status SenderAsk::named(const Pending& pending, const Status& status) const {
  return Status(status.reason(),
                fmt::format("{} from {}: {}", escape_control(pending.request->key.substr(0, 200)),
                            link_->sender().to_string(), status.message()));
}

// --- Peers of 0.30 ---

// They know neither several keys nor waiting: one after the other, asked again and again.
void SenderAsk::ask_omni() {
  while (!done()) {
    const Pending pending = pending_.back();
    Duration pause = kOmniFirstPause;
    const Deadline until = Deadline::earlier(terms_.deadline, Deadline::in(terms_.wait));
    auto outcome = query_omni(*pending.request);
    while (outcome.status().reason() == Reason::kNotFound && !until.passed()) {
      if (const Status status = home_->go_on(terms_.interrupted); !status.ok()) {
        outcome = status;
        break;
      }
      std::this_thread::sleep_for(std::min<Duration>(pause, until.left()));
      pause = std::min(pause * 2, kOmniLongestPause);
      outcome = query_omni(*pending.request);
    }
    const bool late =
        outcome.status().reason() == Reason::kNotFound && terms_.wait > Duration::zero();
    results_[pending.index].emplace(
        outcome.ok() ? std::move(outcome)
                     : Result<std::unique_ptr<ClaimState>>(
                           named(pending, late ? Status(Reason::kTimedOut, "it was not put in time")
                                               : outcome.status())));
    pending_.pop_back();
  }
}

Result<std::unique_ptr<ClaimState>> SenderAsk::query_omni(const GetRequest& request) {
  SL_ASSIGN(SenderLife::Lease lease, life_->line());
  const Deadline answer_by =
      Deadline::earlier(terms_.deadline, Deadline::in(home_->options.ask_timeout));
  const auto sent = Deadline::Clock::now();
  Status status = lease->send(omni_request(OmniRequest::kQuery, request.key), answer_by);
  std::optional<OmniInfo> info;
  while (status.ok() && !info.has_value()) {
    auto received = lease->receive(answer_by, home_->stop.get());
    status = received.status();
    if (status.ok()) status = home_->go_on(terms_.interrupted);
    if (!status.ok()) break;
    if (!received->has_value()) {
      if (answer_by.passed()) status = Status(Reason::kStopped, "the sender does not answer");
      continue;
    }
    const MessageSpan answer = **received;
    // Answers to cleanups, which nobody has waited for.
    if (is_omni_word(answer, kOmniAckOk) || is_omni_word(answer, kOmniAckError)) continue;
    if (is_omni_word(answer, kOmniNotFound)) {
      return Status(Reason::kNotFound, "the sender offers nothing under this key");
    }
    auto read = read_omni_info(answer);
    status = read.status();
    if (status.ok() && read->key != request.key) {
      status = Status(Reason::kFrame, "the answer is for another key");
    }
    if (status.ok()) info = *std::move(read);
  }
  if (!status.ok()) {
    lease.spoil();  // An answer that comes late must not be taken for the next one.
    return status;
  }
  auto state = std::make_unique<ClaimState>(home_, life_, lease.line());
  state->key = std::string(request.key);
  state->rpc_port = info->rpc_port;
  state->body.bytes = info->data_size;
  state->body.is_fast_path = info->is_fast_path;
  for (size_t i = 0; i < info->addresses.size(); ++i) {
    state->body.pieces.push_back({kPoolRegion, info->addresses[i], info->lengths[i]});
  }
  // What it keeps its payloads for is not told; our own setting stands for it.
  const Duration hold = home_->options.buffer_ttl > Duration::zero() ? home_->options.buffer_ttl
                                                                     : home_->options.claim_timeout;
  state->until = Deadline::after(sent, hold);
  return state;
}

}  // namespace stagelink::pull
