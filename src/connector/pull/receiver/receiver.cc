#include "connector/pull/receiver/receiver.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <sys/eventfd.h>

#include "base/log.h"
#include "base/text.h"
#include "connector/pull/messages/stamp.h"

namespace stagelink::pull {
namespace {

constexpr Duration kAskTick = std::chrono::milliseconds(100);
// So long the next grant is waited for before those that are there are pulled.
constexpr Duration kMoreComes = std::chrono::milliseconds(1);
// Lines of the log for the failures of one call that have one reason.
constexpr size_t kLinesOfReason = 5;

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

// One get, from its claim to its value.
class Receiver::Pull {
 public:
  Pull(const GetRequest& request, Result<std::unique_ptr<ClaimState>> claim, Duration query)
      : request_(request), status_(claim.status()) {
    if (claim.ok()) claim_ = *std::move(claim);
    received_.times.query = query;
  }

  // Finds a place for the payload, which is waited for until `room`.
  void allocate(Home& home, const Interrupted& interrupted, const Deadline& room) {
    if (!status_.ok()) return;
    const uint64_t bytes = claim_->body.bytes;
    if (!request_.into.empty()) {
      status_ = divide(bytes);
      return;
    }
    auto piece = home.pool->allocate(bytes, Deadline::earlier(room, claim_->until),
                                     [&] { return home.go_on(interrupted); });
    status_ = piece.status();
    if (piece.ok()) received_.piece = *std::move(piece);
    whole_ = {0, received_.piece.bytes()};
  }

  std::optional<PartsOfClaim> parts() const {
    if (!status_.ok()) return std::nullopt;
    return PartsOfClaim{claim_.get(), all_parts()};
  }

  void take(ReadOutcome outcome, Duration allocating, Duration reading) {
    status_ = std::move(outcome.status);
    received_.times.alloc = allocating;
    received_.times.read = reading;
    if (status_.ok() && outcome.sum.has_value()) status_ = check_sum(*outcome.sum);
  }

  ClaimState* claim() const noexcept { return claim_.get(); }
  bool ok() const noexcept { return status_.ok(); }

  void set_total(Duration total) noexcept { received_.times.total = total; }

  Result<Received> finish() {
    if (!status_.ok()) return status_;
    received_.bytes = claim_->body.bytes;
    received_.generation = claim_->body.generation;
    received_.is_fast_path = claim_->body.is_fast_path;
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

  std::span<const ReadPart> all_parts() const noexcept {
    return request_.into.empty() ? std::span(&whole_, 1) : std::span(parts_);
  }

  Status check_sum(uint64_t sum) const {
    std::vector<std::span<const std::byte>> pieces;
    for (const ReadPart& part : all_parts()) pieces.emplace_back(part.into);
    if (payload_digest(pieces) == sum) return {};
    return Status(Reason::kChecksum,
                  fmt::format("{}: the bytes that arrived are not those that were put",
                              escape_control(request_.key.substr(0, 200))));
  }

  const GetRequest& request_;
  Status status_;
  std::unique_ptr<ClaimState> claim_;
  ReadPart whole_;               // In a piece of the pool, or
  std::vector<ReadPart> parts_;  // in given memory.
  Received received_;
};

// All gets of one call.
class Receiver::Pulls {
 public:
  Pulls(const Receiver& receiver, std::span<const GetRequest> requests, const AskTerms& terms,
        ClaimResults& claims)
      : receiver_(receiver),
        requests_(requests),
        terms_(terms),
        claims_(claims),
        begin_(PullClock::now()),
        pulls_(requests.size()) {}

  // Claims have been answered that nobody has looked at.
  bool has_ready() const noexcept {
    for (size_t i = 0; i < pulls_.size(); ++i) {
      if (claims_[i].has_value() && !pulls_[i].has_value()) return true;
    }
    return false;
  }

  // Reads and releases what is ready, all of it at once.
  void pull_ready() {
    const auto claimed = PullClock::now();
    const Deadline room = Deadline::earlier(terms_.deadline, Deadline::after(claimed, terms_.room));
    std::vector<PartsOfClaim> reads;
    std::vector<Pull*> reading;
    reads.reserve(pulls_.size());
    reading.reserve(pulls_.size());
    for (size_t i = 0; i < pulls_.size(); ++i) {
      if (!claims_[i].has_value() || pulls_[i].has_value()) continue;
      Pull& pull = pulls_[i].emplace(requests_[i], *std::move(claims_[i]), claimed - begin_);
      pull.allocate(*receiver_.home_, terms_.interrupted, room);
      const auto parts = pull.parts();
      if (!parts.has_value()) continue;
      reads.push_back(*parts);
      reading.push_back(&pull);
    }
    const auto allocated = PullClock::now();
    std::vector<ReadOutcome> outcomes = receiver_.reader_.read(reads, terms_.deadline);
    const auto read = PullClock::now();
    std::vector<ClaimState*> consumed;
    consumed.reserve(reading.size());
    for (size_t i = 0; i < reading.size(); ++i) {
      reading[i]->take(std::move(outcomes[i]), allocated - claimed, read - allocated);
      consumed.push_back(reading[i]->ok() ? reading[i]->claim() : nullptr);
    }
    ClaimState::end_all(consumed, true);
    const auto done = PullClock::now();
    for (Pull* const pull : reading) pull->set_total(done - begin_);
  }

  std::vector<Result<Received>> finish() {
    std::vector<Result<Received>> results;
    results.reserve(pulls_.size());
    for (std::optional<Pull>& pull : pulls_) results.push_back(pull->finish());
    return results;
  }

 private:
  const Receiver& receiver_;
  const std::span<const GetRequest> requests_;
  const AskTerms& terms_;
  ClaimResults& claims_;
  const PullClock::time_point begin_;
  std::vector<std::optional<Pull>> pulls_;
};

// The senders of one call, until each key has had its answer.
class Receiver::Asking {
 public:
  Asking(std::shared_ptr<Home> home, const AskTerms& terms, ClaimResults& results, Pulls* pulls)
      : home_(std::move(home)), terms_(terms), results_(results), pulls_(pulls) {}

  void add(std::shared_ptr<SenderLink> link, const GetRequest& request, size_t index) {
    const auto ask = std::find_if(asks_.begin(), asks_.end(),
                                  [&](const SenderAsk& each) { return each.link() == link; });
    SenderAsk& of_sender =
        ask != asks_.end() ? *ask : asks_.emplace_back(home_, std::move(link), terms_, results_);
    of_sender.add(request, index);
  }

  void run() {
    const Status status = run_open();
    for (SenderAsk& ask : asks_) {
      if (!ask.done()) ask.fail(status);
    }
  }

 private:
  // A failure ends whatever has had no answer yet.
  Status run_open();
  void begin();
  Status wait();
  Status wait_for_any(const Deadline& deadline);
  size_t pending() const noexcept;

  const std::shared_ptr<Home> home_;
  const AskTerms& terms_;
  ClaimResults& results_;
  Pulls* const pulls_;
  std::vector<SenderAsk> asks_;
  std::vector<SenderAsk*> open_;
  std::shared_ptr<const UniqueFd> met_;  // An eventfd; null without meetings.
};

ClaimResults Receiver::claim(std::span<const GetRequest> requests, const GetTerms& terms) {
  ClaimResults results(requests.size());
  claim_until(requests, {terms.wait, deadline_of(terms), terms.interrupted}, results, nullptr);
  return results;
}

std::vector<Result<Received>> Receiver::get(std::span<const GetRequest> requests,
                                            const GetTerms& terms) {
  AskTerms until{terms.wait, deadline_of(terms), terms.interrupted};
  // Without a time of its own a get that looks once does not wait for its own pool as long as a
  // claim may last.
  if (terms.timeout <= Duration::zero()) {
    until.room = std::max<Duration>(terms.wait, home_->options.ask_timeout);
  }
  ClaimResults claims(requests.size());
  Pulls pulls(*this, requests, until, claims);
  claim_until(requests, until, claims, &pulls);
  pulls.pull_ready();
  std::vector<Result<Received>> results = pulls.finish();
  count(requests, results);
  return results;
}

void Receiver::claim_until(std::span<const GetRequest> requests, const AskTerms& terms,
                           ClaimResults& results, Pulls* pulls) {
  Asking asking(home_, terms, results, pulls);
  // Most keys of a call are at one sender.
  std::shared_ptr<SenderLink> link;
  const PullMetadata* place = nullptr;
  for (size_t i = 0; i < requests.size(); ++i) {
    Status status = check_key(requests[i].key);
    if (status.ok() && (link == nullptr || requests[i].metadata != place)) {
      auto found = link_of(requests[i]);
      status = found.status();
      link = found.ok() ? *std::move(found) : nullptr;
      place = requests[i].metadata;
    }
    if (status.ok()) {
      asking.add(link, requests[i], i);
    } else {
      results[i].emplace(std::move(status));
    }
  }
  asking.run();
}

std::vector<ReadOutcome> Receiver::read(std::span<const PartsOfClaim> reads,
                                        Duration timeout) const {
  const Duration time = timeout > Duration::zero() ? timeout : Duration(Deadline::kLongest);
  return reader_.read(reads, Deadline::in(time));
}

// One line for each failure, but not for each of many that have the same cause.
void Receiver::count(std::span<const GetRequest> requests,
                     std::span<const Result<Received>> outcomes) {
  std::map<Reason, size_t> failed;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    count(outcomes[i]);
    const Status& status = outcomes[i].status();
    if (status.ok() || is_quiet(status) || ++failed[status.reason()] > kLinesOfReason) continue;
    log(LogLevel::kWarning, "pull",
        fmt::format("get of {} failed: {}", escape_control(requests[i].key.substr(0, 200)),
                    status.to_string()));
  }
  for (const auto& [reason, gets] : failed) {
    if (gets <= kLinesOfReason) continue;
    log(LogLevel::kWarning, "pull",
        fmt::format("gets of {} further keys in the same call failed: {}", gets - kLinesOfReason,
                    reason_name(reason)));
  }
}

void Receiver::count(const Result<Received>& outcome) {
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
  metrics.count_get(outcome.status().reason(), 0);
}

// --- Asking ---

Status Receiver::Asking::run_open() {
  SL_TRY(home_->usable());
  begin();
  while (true) {
    std::erase_if(open_, [](const SenderAsk* ask) { return ask->done(); });
    if (open_.empty()) return {};
    SL_TRY(home_->go_on(terms_.interrupted));
    for (SenderAsk* ask : open_) ask->end_meeting();
    const size_t before = pending();
    if (before > 0) SL_TRY(wait());
    for (SenderAsk* ask : open_) ask->look_at_clock();
    // When nothing more comes at once, there is time to pull what has come.
    if (pulls_ != nullptr && pending() == before && before > 0 && pulls_->has_ready()) {
      pulls_->pull_ready();
    }
  }
}

// Senders that are known cost nothing. One other is met right here, unless it may be waited for;
// several are met by threads, so that one which is dead delays nobody.
void Receiver::Asking::begin() {
  std::vector<SenderAsk*> strangers;
  for (SenderAsk& ask : asks_) {
    open_.push_back(&ask);
    if (!ask.knows_sender()) strangers.push_back(&ask);
  }
  if (strangers.size() == 1 && terms_.wait <= Duration::zero()) {
    strangers.front()->meet();
  } else if (!strangers.empty()) {
    met_ = std::make_shared<const UniqueFd>(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    for (SenderAsk* ask : strangers) ask->begin_meeting(met_);
  }
  for (SenderAsk* ask : open_) {
    if (!ask->is_meeting()) ask->ask();
  }
}

size_t Receiver::Asking::pending() const noexcept {
  size_t count = 0;
  for (const SenderAsk* ask : open_) count += ask->pending();
  return count;
}

Status Receiver::Asking::wait() {
  const bool has_more_to_do = pulls_ != nullptr && pulls_->has_ready();
  const Deadline deadline = has_more_to_do
                                ? Deadline::earlier(terms_.deadline, Deadline::in(kMoreComes))
                                : terms_.deadline;
  if (open_.size() > 1 || open_.front()->is_meeting()) return wait_for_any(deadline);
  open_.front()->wait(deadline);
  return {};
}

Status Receiver::Asking::wait_for_any(const Deadline& deadline) {
  std::vector<zmq::PollItem> items;
  std::vector<SenderAsk*> waiting;
  items.push_back({.fd = home_->stop.get(), .want_read = true});
  if (met_ != nullptr) items.push_back({.fd = met_->get(), .want_read = true});
  const size_t first = items.size();
  for (SenderAsk* ask : open_) {
    if (ask->is_meeting() || ask->done()) continue;
    waiting.push_back(ask);
    items.push_back(ask->poll_item());
  }
  const Deadline tick = Deadline::earlier(deadline, Deadline::in(kAskTick));
  SL_TRY(zmq::poll(home_->context->library(), items, tick));
  if (met_ != nullptr && items[1].readable) {
    eventfd_t ignored = 0;
    ::eventfd_read(met_->get(), &ignored);
  }
  for (size_t i = 0; i < waiting.size(); ++i) {
    if (items[first + i].readable) waiting[i]->take_ready();
  }
  return {};
}

}  // namespace stagelink::pull
