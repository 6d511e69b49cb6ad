#include "connector/pull/pull_connector.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <sys/eventfd.h>

#include "base/fork_guard.h"
#include "base/log.h"
#include "base/random.h"
#include "base/text.h"
#include "connector/pull/home.h"
#include "connector/pull/memory/registered_memory.h"
#include "connector/pull/receiver/receiver.h"
#include "connector/pull/sender/sender.h"
#include "connector/zmq/curve_keys.h"
#include "engine/bind_address.h"

namespace stagelink::pull {
namespace {

constexpr std::string_view kPullLog = "pull";

std::string shown_key(std::string_view key) { return escape_control(key.substr(0, 200)); }

std::vector<std::string> transports_of(const std::string& protocol) {
  if (protocol == "shm" || protocol == "cma" || protocol == "unix" || protocol == "tcp") {
    return {protocol};
  }
  return EngineOptions().transports;
}

bool is_any_address(const std::string& host) {
  return host == "auto" || Endpoint{host, 0}.wildcard();
}

Result<EngineOptions> engine_options(const PullOptions& options, bool has_plane) {
  EngineOptions engine;
  engine.interface = options.interface;
  engine.bind = "auto";
  if (!is_any_address(options.host)) {
    engine.bind = Endpoint{options.host, 0}.to_string();
    engine.interface.clear();
  }
  SL_ASSIGN(Endpoint bound, engine::bind_address(engine));
  // A foreign engine has the rpc_port for itself.
  bound.port = has_plane ? uint16_t{0} : static_cast<uint16_t>(options.rpc_port);
  engine.bind = bound.to_string();
  engine.interface.clear();
  if (!options.advertise_host.empty()) {
    const bool is_ipv6 = options.advertise_host.find(':') != std::string::npos;
    engine.advertise = is_ipv6 ? "[" + options.advertise_host + "]" : options.advertise_host;
  }
  engine.runtime_dir = options.runtime_dir;
  engine.secret_file = options.secret_file;
  engine.transports = transports_of(options.protocol);
  engine.checksum = options.checksum;
  return engine;
}

Result<std::shared_ptr<zmq::Context>> open_context(const PullOptions& options) {
  SL_ASSIGN(auto library, zmq::Library::load());
  std::shared_ptr<const zmq::CurveKeys> keys;
  if (!options.secret_file.empty()) {
    SL_ASSIGN(keys, zmq::CurveKeys::from_file(options.secret_file));
  }
  return zmq::Context::create(std::move(library), std::move(keys));
}

Result<std::shared_ptr<const Region>> allocate_region(Engine& engine, uint64_t bytes,
                                                      Effort huge_pages = Effort::kOff) {
  AllocateOptions options;
  options.huge_pages = huge_pages;
  options.access = Access::kReadOnly;  // Of peers.
  SL_ASSIGN(Region region, engine.allocate(bytes, options));
  return std::make_shared<const Region>(std::move(region));
}

Status furnish(Home& home) {
  const PullOptions& options = home.options;
  const uint64_t stamp_bytes = uint64_t{options.max_offers} * sizeof(Stamp);
  SL_ASSIGN(home.stamp_region, allocate_region(*home.engine, stamp_bytes));
  home.stamps = StampSlots::create(home.stamp_region->bytes(), home.stamp_region->hold());
  if (home.plane != nullptr) {
    home.pool_region = home.stamp_region;
    SL_ASSIGN(home.pool, Pool::create(home.plane->memory(), home.plane));
    return {};
  }
  SL_ASSIGN(home.pool_region,
            allocate_region(*home.engine, options.memory_pool_size, options.huge_pages));
  SL_ASSIGN(home.pool, Pool::create(home.pool_region->bytes(), home.pool_region->hold()));
  return {};
}

Result<std::shared_ptr<Home>> make_home(const PullOptions& options,
                                        std::unique_ptr<DataPlane> plane) {
  auto home = std::make_shared<Home>();
  home->options = options;
  home->plane = std::move(plane);
  home->receiver = random_instance_id();
  home->fork_token = ForkGuard::arm();
  home->stop.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!home->stop) return Status(Reason::kNofile, "no descriptor for a connector");
  SL_ASSIGN(home->context, open_context(options));
  SL_ASSIGN(const EngineOptions engine, engine_options(options, home->plane != nullptr));
  SL_ASSIGN(const Endpoint bound, parse_endpoint(engine.bind));
  home->bound_host = bound.host;
  SL_ASSIGN(home->engine, Engine::create(engine));
  SL_TRY(furnish(*home));
  return home;
}

void copy_into_pool(std::span<const std::span<const std::byte>> pieces,
                    std::span<std::byte> into) noexcept {
  size_t at = 0;
  for (const auto from : pieces) {
    if (!from.empty()) std::memcpy(into.data() + at, from.data(), from.size());
    at += from.size();
  }
}

}  // namespace

// Sender, receiver and what they share.
//
// Thread-safety: all methods may run at the same time.
class ConnectorCore {
 public:
  ConnectorCore(std::shared_ptr<Home> shared, std::unique_ptr<Sender> sending)
      : home(std::move(shared)), sender(std::move(sending)), receiver(home, memory) {}

  Status check_put(std::string_view key, uint64_t bytes, uint32_t readers) const;
  Result<Piece> allocate(uint64_t bytes, Duration timeout, const Interrupted& interrupted);
  Result<PullMetadata> count(std::string_view key, uint64_t bytes, Result<PullMetadata> outcome);
  Status close(Duration timeout);

  const std::shared_ptr<Home> home;
  RegisteredMemory memory;
  const std::unique_ptr<Sender> sender;  // Null for a receiver.
  Receiver receiver;

 private:
  Mutex close_mutex_;
  bool closed_ SL_GUARDED_BY(close_mutex_) = false;
};

Status ConnectorCore::check_put(std::string_view key, uint64_t bytes, uint32_t readers) const {
  SL_TRY(home->usable());
  if (sender == nullptr) {
    return Status(Reason::kInvalidArgument, "a connector with `role: receiver` puts nothing");
  }
  if (key.empty() || key.size() > kMaxKeyBytes) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("a key of {} bytes; it may have 1 to {}", key.size(), kMaxKeyBytes));
  }
  if (readers > kMaxReaders) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("readers: {}; expected 0 (any number, it goes by its time) to {}",
                              readers, kMaxReaders));
  }
  if (bytes > 0 && bytes <= kMaxPayloadBytes) return {};
  return Status(Reason::kInvalidArgument, fmt::format("a payload of {} bytes", bytes));
}

Result<Piece> ConnectorCore::allocate(uint64_t bytes, Duration timeout,
                                      const Interrupted& interrupted) {
  SL_TRY(home->usable());
  const auto begin = PullMetrics::Clock::now();
  auto piece =
      home->pool->allocate(bytes, Deadline::in(timeout), [&] { return home->go_on(interrupted); });
  home->metrics.observe(PullPhase::kPutSpace, PullMetrics::Clock::now() - begin);
  return piece;
}

Result<PullMetadata> ConnectorCore::count(std::string_view key, uint64_t bytes,
                                          Result<PullMetadata> outcome) {
  const Reason reason = outcome.status().reason();
  home->metrics.count_put(reason, outcome.ok() ? bytes : 0);
  if (!outcome.ok() && reason != Reason::kClosed && reason != Reason::kCancelled) {
    log(LogLevel::kWarning, kPullLog,
        fmt::format("put of {} ({} bytes) failed: {}", shown_key(key), bytes,
                    outcome.status().to_string()));
  }
  return outcome;
}

Status ConnectorCore::close(Duration timeout) {
  if (ForkGuard::forked(home->fork_token)) return forked_status("the connector");
  const Deadline deadline = Deadline::in(timeout);
  home->closing.store(true);
  ::eventfd_write(home->stop.get(), 1);
  MutexLock lock(close_mutex_);
  if (closed_) return {};
  closed_ = true;
  const size_t claims = sender != nullptr ? sender->close(deadline) : 0;
  receiver.forget_senders();
  constexpr Duration kLeastEngineTime = std::chrono::milliseconds(200);
  const Status status = home->engine->close(std::max(deadline.left(), kLeastEngineTime));
  if (claims == 0) return status;
  return Status(
      Reason::kReaderInside,
      fmt::format("{} payloads were still being read when the connector was closed", claims));
}

// --- PullConnector ---

Result<std::unique_ptr<PullConnector>> PullConnector::create(const PullOptions& options,
                                                             std::unique_ptr<DataPlane> plane,
                                                             ForeignMessages foreign) {
  SL_TRY(check_pull_options(options));
  if ((options.protocol == "ascend") != (plane != nullptr)) {
    return Status(
        Reason::kUnsupported,
        "protocol: `ascend` moves bytes through the engine of `yr.datasystem`, the others "
        "through our own");
  }
  SL_ASSIGN(auto home, make_home(options, std::move(plane)));
  std::unique_ptr<Sender> sender;
  if (options.may_put()) {
    SL_ASSIGN(sender, Sender::open(home, std::move(foreign)));
  }
  return std::unique_ptr<PullConnector>(
      new PullConnector(std::make_shared<ConnectorCore>(std::move(home), std::move(sender))));
}

PullConnector::PullConnector(std::shared_ptr<ConnectorCore> core) noexcept
    : core_(std::move(core)) {}

PullConnector::~PullConnector() {
  if (ForkGuard::forked(core_->home->fork_token)) {
    // The parent's threads and sockets are not ours to end.
    new std::shared_ptr<ConnectorCore>(core_);
    return;
  }
  (void)close();
}

Result<PullMetadata> PullConnector::put(std::string_view key,
                                        std::span<const std::span<const std::byte>> pieces,
                                        const PutTerms& terms) {
  ConnectorCore& core = *core_;
  uint64_t bytes = 0;
  for (const auto piece : pieces) bytes += piece.size();
  if (const Status status = core.check_put(key, bytes, terms.readers); !status.ok()) {
    return core.count(key, bytes, status);
  }
  const Duration timeout =
      terms.timeout > Duration::zero() ? terms.timeout : core.home->options.put_timeout;
  auto piece = core.allocate(bytes, timeout, terms.interrupted);
  if (!piece.ok()) return core.count(key, bytes, piece.status());
  const auto begin = PullMetrics::Clock::now();
  const std::span<std::byte> into = piece->bytes();
  if (core.home->plane != nullptr) {
    const Status status = core.home->plane->copy_in(pieces, into);
    if (!status.ok()) return core.count(key, bytes, status);
  } else {
    copy_into_pool(pieces, into);
  }
  core.home->metrics.observe(PullPhase::kPutCopy, PullMetrics::Clock::now() - begin);
  return put_piece(key, *piece, terms);
}

Result<PullMetadata> PullConnector::put_piece(std::string_view key, const Piece& piece,
                                              const PutTerms& terms) {
  ConnectorCore& core = *core_;
  const std::span<std::byte> bytes = piece.bytes();
  Status status = core.check_put(key, bytes.size(), terms.readers);
  if (status.ok() && !core.home->pool->contains(bytes)) {
    status = Status(Reason::kInvalidArgument, "a piece of another connector's pool");
  }
  if (!status.ok()) return core.count(key, bytes.size(), status);
  const std::span<const std::byte> read_only = bytes;
  Sender::Payload payload{std::make_shared<OfferBody>(), {}, std::span(&read_only, 1)};
  payload.body->piece = piece;
  core.sender->place_in_pool(payload, bytes);
  return core.count(key, bytes.size(), core.sender->offer(key, std::move(payload), terms));
}

Result<PullMetadata> PullConnector::put_ranges(std::string_view key,
                                               std::span<const RegisteredRange> ranges,
                                               RangesFree free, const PutTerms& terms) {
  ConnectorCore& core = *core_;
  uint64_t total = 0;
  for (const RegisteredRange& range : ranges) total += range.bytes;
  Sender::Payload payload{std::make_shared<OfferBody>(), {}, {}};
  Status status = core.check_put(key, total, terms.readers);
  if (status.ok() && core.home->plane != nullptr) {
    status = Status(Reason::kUnsupported, "memory outside the pool with `protocol: ascend`");
  }
  if (status.ok()) status = core.sender->place_ranges(payload, ranges);
  if (!status.ok()) return core.count(key, total, status);
  std::vector<std::span<const std::byte>> bytes;
  for (const RegisteredRange& range : ranges) {
    bytes.emplace_back(range.region->bytes().subspan(range.offset, range.bytes));
  }
  payload.bytes = bytes;
  const std::shared_ptr<OfferBody> body = payload.body;
  body->free = std::move(free);
  auto outcome = core.sender->offer(key, std::move(payload), terms);
  if (!outcome.ok()) body->free = nullptr;
  return core.count(key, total, std::move(outcome));
}

bool PullConnector::cleanup(std::string_view key, uint64_t generation) {
  return core_->sender != nullptr && core_->home->usable().ok() &&
         core_->sender->cleanup(key, generation);
}

bool PullConnector::cleanup_unclaimed(std::string_view key, uint64_t generation) {
  return core_->sender != nullptr && core_->home->usable().ok() &&
         core_->sender->cleanup_unclaimed(key, generation);
}

RoomSignal& PullConnector::room() noexcept { return *core_->home->pool->room(); }

Result<Piece> PullConnector::allocate(uint64_t bytes, Duration timeout,
                                      const Interrupted& interrupted) {
  return core_->allocate(bytes, timeout, interrupted);
}

Result<std::shared_ptr<const Region>> PullConnector::register_memory(void* address,
                                                                     uint64_t bytes) {
  SL_TRY(core_->home->usable());
  SL_ASSIGN(Region made,
            core_->home->engine->register_memory(address, bytes, {.access = Access::kReadOnly}));
  auto region = std::make_shared<const Region>(std::move(made));
  core_->memory.add(region);
  return region;
}

RegisteredRange PullConnector::range_of(const Piece& piece) const {
  const Home& home = *core_->home;
  return {home.pool_region, home.pool->offset_of(piece.bytes()), piece.bytes().size()};
}

Result<std::shared_ptr<const Region>> PullConnector::allocate_memory(uint64_t bytes) {
  SL_TRY(core_->home->usable());
  SL_ASSIGN(auto region,
            allocate_region(*core_->home->engine, bytes, core_->home->options.huge_pages));
  core_->memory.add(region);
  return region;
}

Result<Received> PullConnector::get(const GetRequest& request, const GetTerms& terms) {
  return std::move(core_->receiver.get(std::span(&request, 1), terms).front());
}

std::vector<Result<Received>> PullConnector::get_many(std::span<const GetRequest> requests,
                                                      const GetTerms& terms) {
  return core_->receiver.get(requests, terms);
}

std::vector<Result<Claim>> PullConnector::claim_many(std::span<const GetRequest> requests,
                                                     const GetTerms& terms) {
  ClaimResults claims = core_->receiver.claim(requests, terms);
  std::vector<Result<Claim>> results;
  results.reserve(claims.size());
  for (auto& claim : claims) {
    if (claim->ok()) {
      results.emplace_back(Claim(**std::move(claim)));
    } else {
      core_->home->metrics.count_get(claim->status().reason(), 0);
      results.emplace_back(claim->status());
    }
  }
  return results;
}

std::vector<Status> PullConnector::read_many(std::span<const ClaimRead> reads, Duration timeout) {
  std::vector<PartsOfClaim> parts;
  for (const ClaimRead& read : reads) parts.push_back({read.claim->state_.get(), read.parts});
  std::vector<Status> outcomes;
  for (ReadOutcome& outcome : core_->receiver.read(parts, timeout)) {
    if (!outcome.status.ok()) core_->home->metrics.count_get(outcome.status.reason(), 0);
    outcomes.push_back(std::move(outcome.status));
  }
  return outcomes;
}

void PullConnector::finish(Claim claim) {
  core_->home->metrics.count_get(Reason::kOk, claim.bytes());
  claim.state_->end(true);
}

void PullConnector::update_sender(std::string_view host, uint16_t zmq_port) {
  core_->receiver.set_default_sender(host, zmq_port);
}

void PullConnector::refuse_put(const Status& why) {
  core_->home->metrics.count_put(why.reason(), 0);
}

void PullConnector::refuse_get(const Status& why) {
  core_->home->metrics.count_get(why.reason(), 0);
}

ConnectionInfo PullConnector::connection_info() const {
  if (core_->sender != nullptr) return core_->sender->address();
  const auto engine = parse_endpoint(core_->home->engine->address());
  return engine.ok() ? ConnectionInfo{(*engine).host, 0, (*engine).port} : ConnectionInfo{};
}

PullHealth PullConnector::health() const {
  const PullMetrics& metrics = core_->home->metrics;
  PullHealth health;
  health.status = closed() ? "closed" : "healthy";
  health.address = connection_info();
  const auto pool = core_->home->pool->usage();
  health.pool_size = pool.total;
  health.pool_used = pool.used;
  health.puts = metrics.puts(Reason::kOk);
  health.gets = metrics.gets(Reason::kOk);
  health.bytes_transferred = metrics.put_bytes() + metrics.get_bytes();
  for (int i = 1; i < kReasonCount; ++i) {
    const auto reason = static_cast<Reason>(i);
    const Code code = code_of(reason);
    health.errors += metrics.puts(reason);
    if (code == Code::kNotFound) {
      health.misses += metrics.gets(reason);
    } else if (code == Code::kTimedOut || code == Code::kUnreachable) {
      health.timeouts += metrics.gets(reason);
    } else {
      health.errors += metrics.gets(reason);
    }
  }
  health.offers = core_->home->stamps->taken();
  if (core_->sender != nullptr) {
    const TableUsage usage = core_->sender->usage();
    health.claims = usage.claims;
    health.waiting = usage.waiting;
  }
  return health;
}

const PullOptions& PullConnector::options() const noexcept { return core_->home->options; }
Engine& PullConnector::engine() noexcept { return *core_->home->engine; }

std::string PullConnector::metrics_text() const {
  const Home& home = *core_->home;
  const std::string labels =
      fmt::format("stage=\"{}\",protocol=\"{}\"", home.options.stage_id, home.options.protocol);
  std::string out = home.metrics.text(labels);
  const auto pool = home.pool->usage();
  const auto gauge = [&](std::string_view name, std::string_view help, double value) {
    append_sample(out, name, help, "gauge", labels, value);
  };
  gauge("stagelink_pull_pool_bytes", "Size of the pool.", static_cast<double>(pool.total));
  gauge("stagelink_pull_pool_used_bytes", "Of it in use.", static_cast<double>(pool.used));
  gauge("stagelink_pull_pool_high_water_bytes", "The most that was ever in use.",
        static_cast<double>(pool.high_water));
  gauge("stagelink_pull_pool_fragmentation_ratio",
        "0: all free memory is one piece. Near 1: it is crumbs.", pool.fragmentation());
  gauge("stagelink_pull_pool_waiting", "Puts and gets that wait for space.", pool.waiting);
  gauge("stagelink_pull_senders", "Senders that are known.",
        static_cast<double>(core_->receiver.senders()));
  if (core_->sender != nullptr) core_->sender->append_metrics(out, labels);
  return out + home.engine->metrics_text();
}

Status PullConnector::close(Duration timeout) { return core_->close(timeout); }
bool PullConnector::closed() const noexcept { return core_->home->closing.load(); }

}  // namespace stagelink::pull
