#include "connector/encoder_cache/consumer/consumer.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "base/text.h"
#include "connector/pull/metrics.h"

namespace stagelink::encoder_cache {
namespace {

constexpr std::string_view kTcp = "tcp://";
// How often somebody who waits for another call's load looks whether to go on.
constexpr Duration kLookUp = std::chrono::milliseconds(100);
constexpr Duration kIdentityTime = std::chrono::seconds(2);
constexpr Duration kHandOnTime = std::chrono::seconds(600);
constexpr uint64_t kMaxIdentityBytes = 4096;

Result<Endpoint> endpoint_of(std::string_view producer_zmq) {
  SL_TRY(check_producer_address(producer_zmq));
  return parse_endpoint(producer_zmq.substr(kTcp.size()));
}

// Whether another producer of the same hash may do better.
bool may_ask_next(const Status& status) noexcept {
  switch (status.code()) {
    case Code::kInvalidState:
    case Code::kCancelled:
    case Code::kNoSpace:
    case Code::kLimit: return false;
    default: return true;
  }
}

// Where the producers of one round are: most embeddings of a round have the same one.
class Places {
 public:
  // Errors: what is no address; incompatible: not the shape that the first producer has told.
  Status find(const LoadRequest& request, const ProducerEntry& entry) {
    if (&entry != &request.producers.front() && entry.info != request.producers.front().info) {
      return Status(Reason::kIncompatible,
                    fmt::format("producers of {} do not agree on its shape", request.mm_hash));
    }
    if (!places_.empty() && entry.producer_zmq == address_) return {};
    SL_ASSIGN(const Endpoint endpoint, endpoint_of(entry.producer_zmq));
    address_ = entry.producer_zmq;
    pull::PullMetadata& place = places_.emplace_back();
    place.source_host = endpoint.host;
    place.source_port = endpoint.port;
    return {};
  }
  const pull::PullMetadata* last() const noexcept { return &places_.back(); }

 private:
  std::string address_;                    // The last one's.
  std::deque<pull::PullMetadata> places_;  // Which stay where they are.
};

Status closed_load() { return Status(Reason::kClosed, "the consumer is closed"); }

}  // namespace

// One hash on its way to the pool, for everybody who wants it.
struct Consumer::Flight {
  Mutex mutex;
  CondVar ended;
  std::optional<Result<Embedding>> outcome SL_GUARDED_BY(mutex);
};

struct Consumer::Wanted {
  const LoadRequest* request = nullptr;
  std::shared_ptr<Flight> flight;  // Null: to memory of the caller.
  bool is_ours = true;             // We load it; else somebody else does, and we wait.
  size_t next_producer = 0;
  std::optional<Result<Embedding>> outcome;
};

Result<std::unique_ptr<Consumer>> Consumer::create(const CacheOptions& options, bool may_hand_on,
                                                   pull::ForeignMessages foreign) {
  const pull::Role role = may_hand_on ? pull::Role::kDual : pull::Role::kReceiver;
  SL_ASSIGN(auto pull, pull::PullConnector::create(pull_options_of(options, role), nullptr,
                                                   std::move(foreign)));
  return std::unique_ptr<Consumer>(new Consumer(options, std::move(pull)));
}

Consumer::Consumer(const CacheOptions& options, std::unique_ptr<pull::PullConnector> pull)
    : options_(options),
      key_prefix_(offer_key(options.identity, "")),
      pull_(std::move(pull)),
      seeds_(*pull_, options.control_timeout) {}

Consumer::~Consumer() { (void)close(); }

std::vector<Result<Embedding>> Consumer::load(std::span<const LoadRequest> requests,
                                              const LoadTerms& terms) {
  const Deadline deadline =
      Deadline::in(terms.timeout > Duration::zero() ? terms.timeout : options_.pull_timeout);
  std::vector<Wanted> wanted(requests.size());
  std::vector<Wanted*> sound;
  sound.reserve(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    wanted[i].request = &requests[i];
    if (Status status = check(requests[i]); !status.ok()) {
      wanted[i].outcome.emplace(std::move(status));
      metrics_.count_load(wanted[i].outcome->status().reason(), 0);
    } else {
      sound.push_back(&wanted[i]);
    }
  }
  const std::vector<Wanted*> ours = board(sound);
  metrics_.count_joined(sound.size() - ours.size());
  fetch(ours, terms, deadline);
  for (Wanted& one : wanted) {
    if (!one.outcome.has_value()) await(one, terms, deadline);
  }
  std::vector<Result<Embedding>> outcomes;
  outcomes.reserve(wanted.size());
  for (Wanted& one : wanted) outcomes.push_back(*std::move(one.outcome));
  return outcomes;
}

Status Consumer::check(const LoadRequest& request) const {
  if (pull_->closed()) return closed_load();
  SL_TRY(check_mm_hash(request.mm_hash));
  if (request.producers.empty()) {
    return Status(Reason::kNotFound, fmt::format("nobody has published {}", request.mm_hash));
  }
  const EmbeddingInfo& info = request.producers.front().info;
  SL_TRY(check_embedding(info));
  if (request.into.empty() || request.into.size() == info.nbytes) return {};
  return Status(Reason::kIncompatible,
                fmt::format("{} bytes are there for {}, which has {}", request.into.size(),
                            request.mm_hash, info.nbytes));
}

// Those that are ours to load.
std::vector<Consumer::Wanted*> Consumer::board(std::span<Wanted* const> wanted) {
  std::vector<Wanted*> ours;
  ours.reserve(wanted.size());
  MutexLock lock(mutex_);
  for (Wanted* const one : wanted) {
    if (one->request->into.empty()) {
      auto& flight = flights_[one->request->mm_hash];
      one->is_ours = flight == nullptr;
      if (one->is_ours) flight = std::make_shared<Flight>();
      one->flight = flight;
    }
    if (one->is_ours) ours.push_back(one);
  }
  return ours;
}

// Ours have outcomes: those who wait for them are told.
void Consumer::land(std::span<Wanted* const> wanted) {
  {
    MutexLock lock(mutex_);
    for (Wanted* const one : wanted) {
      if (one->flight != nullptr) flights_.erase(one->request->mm_hash);
    }
  }
  for (Wanted* const one : wanted) {
    count(*one);
    // Nobody has joined it, and nobody can any more.
    if (one->flight == nullptr || one->flight.use_count() == 1) continue;
    MutexLock lock(one->flight->mutex);
    one->flight->outcome = one->outcome;
    one->flight->ended.notify_all();
  }
}

void Consumer::count(Wanted& wanted) {
  const Reason reason = wanted.outcome->status().reason();
  metrics_.count_load(reason, wanted.outcome->ok() ? (*wanted.outcome)->info.nbytes : 0);
  if (reason != Reason::kOk && reason != Reason::kCancelled && reason != Reason::kClosed) {
    log(LogLevel::kWarning, "encoder cache consumer",
        fmt::format("embedding {} was not loaded: {}", to_plain_text(wanted.request->mm_hash, 64),
                    wanted.outcome->status().to_string()));
  }
}

void Consumer::fetch(std::span<Wanted* const> wanted, const LoadTerms& terms,
                     const Deadline& deadline) {
  std::vector<Wanted*> open(wanted.begin(), wanted.end());
  while (!open.empty()) {
    ask_round(open, terms, deadline);
    std::vector<Wanted*> again;
    std::vector<Wanted*> ended;
    ended.reserve(open.size());
    for (Wanted* const one : open) {
      const bool has_next = ++one->next_producer < one->request->producers.size();
      if (!one->outcome->ok() && has_next && may_ask_next(one->outcome->status()) &&
          !deadline.passed()) {
        again.push_back(one);
      } else {
        ended.push_back(one);
      }
    }
    land(ended);
    open = std::move(again);
  }
}

// Each from its next producer, all at once.
void Consumer::ask_round(std::span<Wanted* const> wanted, const LoadTerms& terms,
                         const Deadline& deadline) {
  std::vector<std::string> keys(wanted.size());
  Places places;
  std::vector<pull::GetRequest> gets;
  gets.reserve(wanted.size());
  std::vector<Wanted*> asked;
  std::vector<Wanted*> seeds;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const LoadRequest& request = *wanted[i]->request;
    const ProducerEntry& entry = request.producers[wanted[i]->next_producer];
    if (const Status status = places.find(request, entry); !status.ok()) {
      wanted[i]->outcome.emplace(status);
      continue;
    }
    if (!entry.knows_leases && options_.seed_peers) {
      seeds.push_back(wanted[i]);
      continue;
    }
    if (!entry.knows_leases) {
      wanted[i]->outcome.emplace(
          Status(Reason::kUnsupported,
                 fmt::format("{} knows no leases, and `seed_peers` is off", entry.producer_zmq)));
      continue;
    }
    keys[i] = key_of(*wanted[i]);
    gets.push_back(
        {.key = keys[i], .metadata = places.last(), .into = std::span(&request.into, 1)});
    if (request.into.empty()) gets.back().into = {};
    asked.push_back(wanted[i]);
  }
  if (!seeds.empty()) ask_seeds(seeds, terms, deadline);
  if (gets.empty()) return;
  auto got = pull_->get_many(
      gets,
      {.wait = Duration::zero(), .timeout = deadline.left(), .interrupted = terms.interrupted});
  for (size_t i = 0; i < asked.size(); ++i) {
    const LoadRequest& request = *asked[i]->request;
    const ProducerEntry& entry = request.producers[asked[i]->next_producer];
    if (!got[i].ok()) {
      Status status = got[i].status();
      if (status.code() == Code::kNotFound && !request.is_handed_on) {
        status =
            explain_miss(Endpoint{gets[i].metadata->source_host, gets[i].metadata->source_port},
                         status, deadline);
      }
      asked[i]->outcome.emplace(std::move(status));
    } else if (got[i]->bytes != entry.info.nbytes) {
      asked[i]->outcome.emplace(Status(
          Reason::kIncompatible, fmt::format("{} has {} bytes at its producer, which published {}",
                                             request.mm_hash, got[i]->bytes, entry.info.nbytes)));
    } else {
      asked[i]->outcome.emplace(Embedding{request.mm_hash, entry.info, entry.producer_zmq,
                                          std::move(got[i]->piece), got[i]->times});
    }
  }
}

void Consumer::ask_seeds(std::span<Wanted* const> wanted, const LoadTerms& terms,
                         const Deadline& deadline) {
  std::vector<SeedSource::Ask> asks;
  for (const Wanted* const one : wanted) {
    const LoadRequest& request = *one->request;
    asks.push_back({request.mm_hash, &request.producers[one->next_producer], request.into});
  }
  auto got = seeds_.get(asks, deadline, terms.interrupted);
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!got[i].ok()) {
      wanted[i]->outcome.emplace(got[i].status());
      continue;
    }
    const ProducerEntry& entry = *asks[i].entry;
    wanted[i]->outcome.emplace(Embedding{
        wanted[i]->request->mm_hash, entry.info, entry.producer_zmq, *std::move(got[i]), {}});
  }
}

// Whatever is offered under the hash is the embedding: a later save of it will do.
std::string Consumer::key_of(const Wanted& wanted) const {
  const LoadRequest& request = *wanted.request;
  if (!request.is_handed_on) return key_prefix_ + request.mm_hash;
  return hand_on_key(options_.identity, request.mm_hash,
                     request.producers[wanted.next_producer].generation);
}

// Somebody else loads it, or has given up: then we do.
void Consumer::await(Wanted& wanted, const LoadTerms& terms, const Deadline& deadline) {
  while (true) {
    {
      MutexLock lock(wanted.flight->mutex);
      while (!wanted.flight->outcome.has_value() && !deadline.passed() &&
             !(terms.interrupted != nullptr && terms.interrupted())) {
        wanted.flight->ended.wait_until(wanted.flight->mutex,
                                        Deadline::earlier(deadline, Deadline::in(kLookUp)));
      }
      wanted.outcome = wanted.flight->outcome;
    }
    if (!wanted.outcome.has_value()) {
      wanted.outcome.emplace(deadline.passed()
                                 ? Status(Reason::kTimedOut, fmt::format("{} is still on its way",
                                                                         wanted.request->mm_hash))
                                 : Status(Reason::kCancelled, "the load was interrupted"));
      return;
    }
    const bool gave_up =
        !wanted.outcome->ok() && (wanted.outcome->status().code() == Code::kCancelled ||
                                  wanted.outcome->status().code() == Code::kTimedOut);
    if (!gave_up || pull_->closed() || deadline.passed()) return;
    wanted.outcome.reset();
    Wanted* const one = &wanted;
    if (const auto ours = board(std::span(&one, 1)); !ours.empty()) {
      fetch(ours, terms, deadline);
      return;
    }
  }
}

// A producer of another identity keeps its embeddings under other keys.
Status Consumer::explain_miss(const Endpoint& producer, const Status& miss,
                              const Deadline& deadline) {
  if (options_.identity.empty()) return miss;
  pull::PullMetadata place;
  place.source_host = producer.host;
  place.source_port = producer.port;
  const pull::GetRequest request{.key = kIdentityKey, .metadata = &place, .into = {}};
  auto got = pull_->get(request, {.wait = Duration::zero(),
                                  .timeout = std::min<Duration>(deadline.left(), kIdentityTime),
                                  .interrupted = {}});
  if (!got.ok() || got->bytes > kMaxIdentityBytes) return miss;
  const std::span<const std::byte> bytes = got->piece.bytes();
  const std::string_view theirs(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (theirs == options_.identity) return miss;
  return Status(Reason::kIncompatible,
                fmt::format("the producer at {} is `{}`, this consumer is `{}`",
                            producer.to_string(), to_plain_text(theirs, 512), options_.identity));
}

Result<pull::Piece> Consumer::allocate(uint64_t bytes, Duration timeout,
                                       const Interrupted& interrupted) {
  return pull_->allocate(bytes, timeout, interrupted);
}

Result<ProducerEntry> Consumer::hand_on(const Embedding& embedding, uint32_t readers) {
  const pull::PutTerms terms{.readers = readers,
                             .ttl = kHandOnTime,
                             .timeout = Duration::zero(),
                             .is_fast_path = true,
                             .interrupted = {}};
  const uint64_t turn = next_hand_on_.fetch_add(1);
  const std::string key = hand_on_key(options_.identity, embedding.mm_hash, turn);
  SL_ASSIGN([[maybe_unused]] const auto put, pull_->put_piece(key, embedding.piece, terms));
  return ProducerEntry{embedding.info, zmq_address(), turn};
}

void Consumer::take_back(std::string_view mm_hash, uint64_t generation) {
  (void)pull_->cleanup(hand_on_key(options_.identity, mm_hash, generation));
}

std::string Consumer::zmq_address() const {
  const pull::ConnectionInfo info = pull_->connection_info();
  return fmt::format("{}{}", kTcp, Endpoint{info.host, info.zmq_port}.to_string());
}

ConsumerUsage Consumer::usage() const {
  const pull::PullHealth health = pull_->health();
  ConsumerUsage usage{.pool_size = health.pool_size,
                      .pool_used = health.pool_used,
                      .in_flight = 0,
                      .handed_on = health.offers};
  MutexLock lock(mutex_);
  usage.in_flight = flights_.size();
  return usage;
}

std::string Consumer::metrics_text() const {
  constexpr std::string_view kLabels = "role=\"consumer\"";
  std::string out = metrics_.text(kLabels);
  const ConsumerUsage usage = this->usage();
  const auto gauge = [&](std::string_view name, std::string_view help, uint64_t value) {
    pull::append_sample(out, name, help, "gauge", kLabels, static_cast<double>(value));
  };
  gauge("stagelink_ec_pool_bytes", "Memory for embeddings.", usage.pool_size);
  gauge("stagelink_ec_pool_used_bytes", "Memory that embeddings take.", usage.pool_used);
  gauge("stagelink_ec_loads_in_flight", "Hashes on their way.", usage.in_flight);
  gauge("stagelink_ec_handed_on", "Embeddings that wait for the workers of this engine.",
        usage.handed_on);
  return out + pull_->metrics_text();
}

Status Consumer::close(Duration timeout) { return pull_->close(timeout); }

}  // namespace stagelink::encoder_cache
