#include "connector/pull/receiver/receiver.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "base/text.h"
#include "connector/pull/messages/stamp.h"

namespace stagelink::pull {
namespace {

constexpr size_t kMostMeetings = 64;  // At the same time.
constexpr Duration kAskTick = std::chrono::milliseconds(100);

using PullClock = PullMetrics::Clock;

// What nobody need be told of, or what the engine has said already.
bool is_quiet(const Status& status) noexcept {
  return status.reason() == Reason::kNotFound || status.reason() == Reason::kCancelled ||
         status.reason() == Reason::kClosed;
}

Status check_key(std::string_view key) {
  if (!key.empty() && key.size() <= kMaxKeyBytes) return {};
  return Status(Reason::kInvalidArgument,
                fmt::format("a key of {} bytes; it may have 1 to {}", key.size(), kMaxKeyBytes));
}

}  // namespace

Receiver::Receiver(std::shared_ptr<Home> home, const RegisteredMemory& memory)
    : home_(std::move(home)), reader_(home_, memory), links_(*home_) {
  const PullOptions& options = home_->options;
  if (!options.sender_host.empty() && options.sender_zmq_port != 0) {
    set_default_sender(options.sender_host, static_cast<uint16_t>(options.sender_zmq_port));
  }
}

void Receiver::set_default_sender(std::string_view host, uint16_t port) {
  auto link = host.empty() || port == 0 ? nullptr : links_.find(host, port);
  MutexLock lock(default_mutex_);
  default_link_.swap(link);
}

Deadline Receiver::deadline_of(const GetTerms& terms) const noexcept {
  if (terms.timeout > Duration::zero()) return Deadline::in(terms.timeout);
  const PullOptions& options = home_->options;
  return Deadline::in(std::min<Duration>(terms.wait, Deadline::kLongest / 2) + options.ask_timeout +
                      options.claim_timeout);
}

Result<std::shared_ptr<SenderLink>> Receiver::link_of(const GetRequest& request) {
  SL_TRY(check_key(request.key));
  if (request.metadata != nullptr && !request.metadata->source_host.empty()) {
    if (request.metadata->source_port == 0) {
      return Status(Reason::kInvalidArgument,
                    "metadata without a port: `source_port` is the sender's zmq_port");
    }
    return links_.find(request.metadata->source_host, request.metadata->source_port);
  }
  MutexLock lock(default_mutex_);
  if (default_link_ != nullptr) return default_link_;
  return Status(Reason::kInvalidArgument,
                "no sender is known: give metadata with `source_host` and `source_port`, set "
                "`sender_host` and `sender_zmq_port`, or call update_sender_info()");
}

ClaimResults Receiver::claim(std::span<const GetRequest> requests, const GetTerms& terms) {
  return claim_until(requests, {terms.wait, deadline_of(terms), terms.interrupted});
}

ClaimResults Receiver::claim_until(std::span<const GetRequest> requests, const AskTerms& terms) {
  ClaimResults results(requests.size());
  std::vector<SenderAsk> asks;
  for (size_t i = 0; i < requests.size(); ++i) {
    auto link = link_of(requests[i]);
    if (!link.ok()) {
      results[i].emplace(link.status());
      continue;
    }
    const auto ask = std::find_if(asks.begin(), asks.end(),
                                  [&](const SenderAsk& each) { return each.link() == *link; });
    SenderAsk& of_sender =
        ask != asks.end() ? *ask : asks.emplace_back(home_, *std::move(link), terms, results);
    of_sender.add(requests[i], i);
  }
  const Status status = run(asks, terms);
  for (SenderAsk& ask : asks) {
    if (!ask.done()) ask.fail(status);
  }
  return results;
}

// A failure ends whatever has had no answer yet.
Status Receiver::run(std::vector<SenderAsk>& asks, const AskTerms& terms) {
  SL_TRY(home_->usable());
  meet_all(asks);
  std::vector<SenderAsk*> open;
  for (SenderAsk& ask : asks) {
    ask.ask();
    open.push_back(&ask);
  }
  while (true) {
    std::erase_if(open, [](const SenderAsk* ask) { return ask->done(); });
    if (open.empty()) return {};
    SL_TRY(home_->go_on(terms.interrupted));
    if (open.size() == 1) {
      open.front()->wait();
    } else {
      SL_TRY(wait_for_any(open, terms));
    }
    for (SenderAsk* ask : open) ask->look_at_clock();
  }
}

// Senders that are known cost nothing. Of several others each is met by a thread, so that one which
// is dead delays nobody.
void Receiver::meet_all(std::vector<SenderAsk>& asks) {
  std::vector<SenderAsk*> strangers;
  for (SenderAsk& ask : asks) {
    if (!ask.knows_sender()) strangers.push_back(&ask);
  }
  for (size_t first = 0; first < strangers.size(); first += kMostMeetings) {
    const size_t last = std::min(strangers.size(), first + kMostMeetings);
    std::vector<std::thread> threads;
    for (size_t i = first + 1; i < last; ++i) {
      threads.emplace_back([ask = strangers[i]] { ask->meet(); });
    }
    strangers[first]->meet();
    for (std::thread& thread : threads) thread.join();
  }
}

Status Receiver::wait_for_any(std::span<SenderAsk* const> asks, const AskTerms& terms) {
  std::vector<zmq::PollItem> items;
  items.push_back({.fd = home_->stop.get(), .want_read = true});
  for (const SenderAsk* ask : asks) items.push_back(ask->poll_item());
  const Deadline tick = Deadline::earlier(terms.deadline, Deadline::in(kAskTick));
  SL_TRY(zmq::poll(home_->context->library(), items, tick));
  for (size_t i = 0; i < asks.size(); ++i) {
    if (items[i + 1].readable) asks[i]->take_ready();
  }
  return {};
}

std::vector<ReadOutcome> Receiver::read(std::span<const PartsOfClaim> reads,
                                        Duration timeout) const {
  const Duration time = timeout > Duration::zero() ? timeout : Duration(Deadline::kLongest);
  return reader_.read(reads, Deadline::in(time));
}

// --- Gets ---

// One get, from its claim to its value.
class Receiver::Pull {
 public:
  Pull(const GetRequest& request, Result<std::unique_ptr<ClaimState>> claim)
      : request_(request), status_(claim.status()) {
    if (claim.ok()) claim_ = *std::move(claim);
  }

  // Finds a place for the payload.
  void allocate(Home& home, const AskTerms& terms) {
    if (!status_.ok()) return;
    const auto begin = PullClock::now();
    const uint64_t bytes = claim_->body.bytes;
    if (request_.into.empty()) {
      auto piece = home.pool->allocate(bytes, Deadline::earlier(terms.deadline, claim_->until),
                                       [&] { return home.go_on(terms.interrupted); });
      status_ = piece.status();
      if (piece.ok()) received_.piece = *std::move(piece);
      parts_.push_back({0, received_.piece.bytes()});
    } else {
      status_ = divide(bytes);
    }
    received_.times.alloc = PullClock::now() - begin;
  }

  std::optional<PartsOfClaim> parts() {
    if (!status_.ok()) return std::nullopt;
    return PartsOfClaim{claim_.get(), parts_};
  }

  void take(ReadOutcome outcome, Duration taken) {
    status_ = std::move(outcome.status);
    received_.times.read = taken;
    if (status_.ok() && outcome.sum.has_value()) status_ = check_sum(*outcome.sum);
  }

  ClaimState* claim() const noexcept { return claim_.get(); }
  bool ok() const noexcept { return status_.ok(); }

  Result<Received> finish(Duration query, Duration total) {
    if (!status_.ok()) return status_;
    received_.bytes = claim_->body.bytes;
    received_.generation = claim_->body.generation;
    received_.is_fast_path = claim_->body.is_fast_path;
    received_.times.query = query;
    received_.times.total = total;
    return std::move(received_);
  }

 private:
  Status divide(uint64_t bytes) {
    uint64_t offset = 0;
    for (const std::span<std::byte> into : request_.into) {
      parts_.push_back({offset, into});
      offset += into.size();
    }
    if (offset == bytes) return {};
    return Status(Reason::kInvalidArgument,
                  fmt::format("{}: the payload has {} bytes, the given memory {}",
                              escape_control(request_.key.substr(0, 200)), bytes, offset));
  }

  Status check_sum(uint64_t sum) const {
    std::vector<std::span<const std::byte>> pieces;
    for (const ReadPart& part : parts_) pieces.emplace_back(part.into);
    if (payload_digest(pieces) == sum) return {};
    return Status(Reason::kChecksum,
                  fmt::format("{}: the bytes that arrived are not those that were put",
                              escape_control(request_.key.substr(0, 200))));
  }

  const GetRequest& request_;
  Status status_;
  std::unique_ptr<ClaimState> claim_;
  std::vector<ReadPart> parts_;
  Received received_;
};

std::vector<Result<Received>> Receiver::get(std::span<const GetRequest> requests,
                                            const GetTerms& terms) {
  const auto begin = PullClock::now();
  const AskTerms until{terms.wait, deadline_of(terms), terms.interrupted};
  ClaimResults claims = claim_until(requests, until);
  const auto claimed = PullClock::now();
  std::vector<Pull> pulls;
  pulls.reserve(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    pulls.emplace_back(requests[i], *std::move(claims[i]));
  }
  for (Pull& pull : pulls) pull.allocate(*home_, until);
  std::vector<PartsOfClaim> reads;
  std::vector<Pull*> reading;
  for (Pull& pull : pulls) {
    const auto parts = pull.parts();
    if (!parts.has_value()) continue;
    reads.push_back(*parts);
    reading.push_back(&pull);
  }
  const auto allocated = PullClock::now();
  std::vector<ReadOutcome> outcomes = reader_.read(reads, until.deadline);
  const auto read = PullClock::now();
  for (size_t i = 0; i < reading.size(); ++i) {
    reading[i]->take(std::move(outcomes[i]), read - allocated);
  }
  std::vector<ClaimState*> consumed;
  for (const Pull& pull : pulls) consumed.push_back(pull.ok() ? pull.claim() : nullptr);
  ClaimState::end_all(consumed, true);

  std::vector<Result<Received>> results;
  results.reserve(pulls.size());
  for (size_t i = 0; i < pulls.size(); ++i) {
    results.push_back(pulls[i].finish(claimed - begin, PullClock::now() - begin));
    count(requests[i], results.back());
  }
  return results;
}

void Receiver::count(const GetRequest& request, const Result<Received>& outcome) {
  PullMetrics& metrics = home_->metrics;
  if (outcome.ok()) {
    const Received& received = *outcome;
    metrics.count_get(Reason::kOk, received.bytes);
    metrics.observe(PullPhase::kGetQuery, received.times.query);
    metrics.observe(PullPhase::kGetAlloc, received.times.alloc);
    metrics.observe(PullPhase::kGetRead, received.times.read);
    metrics.observe(PullPhase::kGetTotal, received.times.total);
    return;
  }
  const Status& status = outcome.status();
  metrics.count_get(status.reason(), 0);
  if (is_quiet(status)) return;
  log(LogLevel::kWarning, "pull",
      fmt::format("get of {} failed: {}", escape_control(request.key.substr(0, 200)),
                  status.to_string()));
}

}  // namespace stagelink::pull
