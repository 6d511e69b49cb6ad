#include "connector/encoder_cache/producer/producer.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/log.h"
#include "base/text.h"
#include "connector/encoder_cache/metrics.h"
#include "connector/encoder_cache/producer/announcer.h"
#include "connector/encoder_cache/producer/cell_table.h"
#include "connector/encoder_cache/producer/seed_pull.h"
#include "connector/pull/metrics.h"

namespace stagelink::encoder_cache {
namespace {

constexpr std::string_view kProducerLog = "encoder cache producer";
// How often whoever waits for room looks whether to go on.
constexpr Duration kLookAtCaller = std::chrono::milliseconds(100);
constexpr size_t kVictimsAtOnce = 64;
pull::PutTerms for_ever() {
  pull::PutTerms terms;
  terms.readers = 0;
  terms.ttl = Duration(-1);
  return terms;
}

}  // namespace

Producer::Producer(const CacheOptions& options)
    : options_(options),
      hook_(std::make_shared<pull::ForeignHook>()),
      metrics_(std::make_unique<CacheMetrics>()),
      cells_(std::make_unique<CellTable>()) {}

Result<std::unique_ptr<Producer>> Producer::create(const CacheOptions& options) {
  std::unique_ptr<Producer> producer(new Producer(options));
  SL_ASSIGN(producer->pull_,
            pull::PullConnector::create(pull_options_of(options, pull::Role::kDual), nullptr,
                                        pull::ForeignHook::messages(producer->hook_)));
  if (options.seed_peers) {
    producer->seed_pull_ = std::make_unique<SeedPull>(producer->pull_->engine(), *producer->cells_,
                                                      *producer->metrics_, options.pull_timeout);
    producer->hook_->set([pull = producer->seed_pull_.get()](std::span<const std::byte> message,
                                                             const pull::ForeignAnswer& answer) {
      return pull->take(message, answer);
    });
  }
  const std::string& identity = options.identity;
  if (!identity.empty()) {
    const std::span<const std::byte> text = std::as_bytes(std::span(identity));
    SL_ASSIGN([[maybe_unused]] const auto put,
              producer->pull_->put(kIdentityKey, std::span(&text, 1), for_ever()));
  }
  if (is_push(options)) {
    SL_ASSIGN(producer->pusher_, Pusher::create(options, *producer->pull_, *producer->metrics_,
                                                producer->producer_zmq()));
  } else {
    SL_ASSIGN(producer->announcer_, Announcer::open(options, producer->producer_zmq(),
                                                    producer->pull_->connection_info().host));
  }
  log(LogLevel::kInfo, kProducerLog,
      fmt::format("EC Mooncake pull listener at {}", producer->producer_zmq()));
  return producer;
}

Producer::~Producer() { (void)close(); }

Status Producer::save(std::string_view mm_hash, const EmbeddingInfo& info,
                      std::span<const std::byte> bytes, const Interrupted& interrupted) {
  const Status status = keep(mm_hash, info, bytes, interrupted);
  if (pusher_ != nullptr) {
    const auto cell = status.ok() ? cells_->find(mm_hash) : std::nullopt;
    if (cell.has_value()) {
      pusher_->made(mm_hash, info, cell->piece);
    } else {
      give_up(mm_hash, status.ok() ? Status(Reason::kEvicted, "it gave way at once") : status);
    }
  }
  metrics_->count_save(status.reason(), bytes.size());
  if (!status.ok() && status.reason() != Reason::kClosed) {
    log(LogLevel::kWarning, kProducerLog,
        fmt::format("embedding {} ({} bytes) was not saved: {}", to_plain_text(mm_hash, 64),
                    bytes.size(), status.to_string()));
  }
  return status;
}

Status Producer::keep(std::string_view mm_hash, const EmbeddingInfo& info,
                      std::span<const std::byte> bytes, const Interrupted& interrupted) {
  SL_TRY(check_mm_hash(mm_hash));
  SL_TRY(check_embedding(info));
  if (bytes.size() != info.nbytes) {
    return Status(Reason::kIncompatible,
                  fmt::format("{} bytes are given, and nbytes is {}", bytes.size(), info.nbytes));
  }
  if (cells_->renew(mm_hash, info)) return {};
  SL_ASSIGN(pull::Piece piece, make_room(bytes.size(), interrupted));
  std::memcpy(piece.bytes().data(), bytes.data(), bytes.size());
  const std::string key = offer_key(options_.identity, mm_hash);
  SL_ASSIGN(const pull::PullMetadata put, pull_->put_piece(key, piece, for_ever()));
  cells_->add(mm_hash, {info, put.generation, std::move(piece)});
  if (announcer_ != nullptr) announcer_->publish({std::string(mm_hash), info, put.generation});
  return {};
}

Result<pull::Piece> Producer::make_room(uint64_t bytes, const Interrupted& interrupted) {
  const Deadline deadline = Deadline::in(options_.space_timeout);
  while (true) {
    const uint64_t seen = pull_->room().count();  // Before the look.
    const bool is_full = cells_->size() >= options_.max_entries;
    Status why(Reason::kNoSpace,
               fmt::format("{} embeddings are kept, each leased", options_.max_entries));
    if (!is_full || evict_idle(0) > 0) {
      auto piece = pull_->allocate(bytes, Duration::zero(), interrupted);
      if (piece.ok() || piece.status().code() != Code::kNoSpace) return piece;
      if (evict_idle(bytes) > 0) continue;
      why = piece.status();
    }
    if (deadline.passed()) return why;
    if (interrupted != nullptr && interrupted()) {
      return Status(Reason::kCancelled, "waiting for room was interrupted");
    }
    (void)pull_->room().await(seen, Deadline::earlier(deadline, Deadline::in(kLookAtCaller)));
  }
}

// Frees the oldest that nobody has leased, at least `bytes` of them if there are; how many.
uint64_t Producer::evict_idle(uint64_t bytes) {
  uint64_t count = 0;
  uint64_t freed = 0;
  size_t skip = 0;
  while (count == 0 || freed < bytes) {
    const auto victims = cells_->oldest(kVictimsAtOnce, skip);
    if (victims.empty()) break;
    std::vector<std::string> hashes;
    uint64_t candidates = 0;
    for (const auto& victim : victims) {
      if (!hashes.empty() && freed + candidates >= bytes) break;
      hashes.push_back(victim.mm_hash);
      candidates += victim.nbytes;
    }
    if (announcer_ != nullptr) announcer_->unpublish(hashes);
    for (size_t i = 0; i < hashes.size(); ++i) {
      const auto& victim = victims[i];
      const std::string key = offer_key(options_.identity, victim.mm_hash);
      if (pull_->cleanup_unclaimed(key, victim.generation)) {
        (void)cells_->remove(victim.mm_hash, victim.generation);
        freed += victim.nbytes;
        ++count;
        continue;
      }
      ++skip;
      // Somebody reads it: it stays, and others may as well.
      const auto cell = cells_->find(victim.mm_hash);
      if (cell.has_value() && announcer_ != nullptr) {
        announcer_->publish({victim.mm_hash, cell->info, cell->generation});
      }
    }
  }
  metrics_->count_evictions(count);
  return count;
}

bool Producer::has(std::string_view mm_hash) const { return cells_->find(mm_hash).has_value(); }

bool Producer::evict(std::string_view mm_hash) {
  const std::string hash(mm_hash);
  const auto cell = cells_->remove(mm_hash);
  if (!cell.has_value()) return false;
  if (announcer_ != nullptr) announcer_->unpublish(std::span(&hash, 1));
  (void)pull_->cleanup(offer_key(options_.identity, mm_hash), cell->generation);
  metrics_->count_evictions(1);
  return true;
}

Status Producer::push(const PushOrder& order) {
  if (pusher_ == nullptr) {
    return Status(Reason::kInvalidState, "ec_mode is pull: nothing is pushed");
  }
  SL_TRY(pusher_->order(order));
  const auto cell = cells_->find(order.mm_hash);
  if (cell.has_value()) pusher_->made(order.mm_hash, cell->info, cell->piece);
  return {};
}

void Producer::give_up(std::string_view mm_hash, const Status& why) {
  if (pusher_ != nullptr) pusher_->failed(mm_hash, why);
}

void Producer::cancel_push(std::string_view transfer_id) {
  if (pusher_ != nullptr) pusher_->cancel(transfer_id);
}

uint64_t Producer::pending_pushes() const { return pusher_ == nullptr ? 0 : pusher_->pending(); }

std::vector<PushFailure> Producer::take_push_failures() {
  return pusher_ == nullptr ? std::vector<PushFailure>() : pusher_->take_failures();
}

Status Producer::flush(Duration timeout) {
  return announcer_ == nullptr ? Status() : announcer_->flush(Deadline::in(timeout));
}

std::string Producer::producer_zmq() const {
  const pull::ConnectionInfo info = pull_->connection_info();
  return fmt::format("tcp://{}", Endpoint{info.host, info.zmq_port}.to_string());
}

const std::string& Producer::registry_url() const noexcept {
  static const std::string kNone;
  return announcer_ == nullptr ? kNone : announcer_->url();
}

ProducerUsage Producer::usage() const {
  const pull::PullHealth health = pull_->health();
  return {.entries = cells_->size(),
          .pool_size = health.pool_size,
          .pool_used = health.pool_used,
          .leases = health.claims,
          .evictions = metrics_->evictions(),
          .oldest_age_seconds = std::chrono::duration<double>(cells_->oldest_age()).count()};
}

const CacheMetrics& Producer::metrics() const noexcept { return *metrics_; }

std::string Producer::metrics_text() const {
  constexpr std::string_view kLabels = "role=\"producer\"";
  std::string out = metrics_->text(kLabels);
  const ProducerUsage usage = this->usage();
  const auto gauge = [&](std::string_view name, std::string_view help, double value) {
    pull::append_sample(out, name, help, "gauge", kLabels, value);
  };
  gauge("stagelink_ec_entries", "Embeddings kept.", static_cast<double>(usage.entries));
  gauge("stagelink_ec_pool_bytes", "Memory for embeddings.", static_cast<double>(usage.pool_size));
  gauge("stagelink_ec_pool_used_bytes", "Memory that embeddings take.",
        static_cast<double>(usage.pool_used));
  gauge("stagelink_ec_leases", "Embeddings that consumers hold in place.",
        static_cast<double>(usage.leases));
  gauge("stagelink_ec_oldest_age_seconds", "Age of the oldest embedding.",
        usage.oldest_age_seconds);
  if (announcer_ != nullptr) announcer_->append_metrics(out, kLabels);
  gauge("stagelink_ec_pushes_pending", "Transfers that consumers have not got yet.",
        static_cast<double>(pending_pushes()));
  return out + pull_->metrics_text();
}

Status Producer::close(Duration timeout) {
  const Deadline deadline = Deadline::in(timeout);
  if (announcer_ != nullptr) announcer_->close(deadline);
  if (pusher_ != nullptr) pusher_->close();
  if (pull_ == nullptr) return {};
  for (const auto& victim : cells_->oldest(options_.max_entries + kVictimsAtOnce, 0)) {
    (void)cells_->remove(victim.mm_hash);
  }
  hook_->set(nullptr);
  Status status = pull_->close(deadline.left());  // Ends what the peers' pulls still write.
  seed_pull_.reset();
  return status;
}

}  // namespace stagelink::encoder_cache
