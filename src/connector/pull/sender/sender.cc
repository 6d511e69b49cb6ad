#include "connector/pull/sender/sender.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/host_id.h"
#include "base/random.h"
#include "connector/pull/metrics.h"

namespace stagelink::pull {
namespace {

constexpr std::array<std::string_view, kOfferEnds> kOfferEndNames = {
    "consumed", "replaced", "expired", "cleaned", "closed"};

OfferTable::Limits limits_of(const PullOptions& options) {
  OfferTable::Limits limits;
  limits.claim_timeout = options.claim_timeout;
  limits.max_waiting = options.max_waiting;
  return limits;
}

// Generations of one life never meet those of another: stale metadata is told from fresh.
uint64_t first_generation() noexcept { return (random_u64() >> 2) | 1; }

uint16_t port_of(const Engine& engine) {
  auto address = parse_endpoint(engine.address());
  return address.ok() ? address->port : uint16_t{0};
}

}  // namespace

Result<std::unique_ptr<Sender>> Sender::open(std::shared_ptr<Home> home, ForeignMessages foreign) {
  SL_ASSIGN(Endpoint told, parse_endpoint(home->engine->address()));
  SL_ASSIGN(zmq::Router router,
            zmq::Router::bind(home->context,
                              {.host = home->bound_host,
                               .interface = {},
                               .port = static_cast<uint16_t>(home->options.zmq_port)},
                              {.max_frame_bytes = static_cast<int64_t>(kMaxMessageBytes)}));
  SL_ASSIGN(auto zmq_door, ZmqDoor::open(std::move(router)));
  told.port = zmq_door->endpoint().port;
  std::unique_ptr<Sender> sender(new Sender(std::move(home), std::move(zmq_door), told));
  SL_TRY(sender->open_unix_door(std::move(foreign)));
  return sender;
}

Sender::Sender(std::shared_ptr<Home> home, std::unique_ptr<ZmqDoor> zmq_door, const Endpoint& told)
    : home_(std::move(home)),
      told_(told),
      next_generation_(first_generation()),
      table_(limits_of(home_->options), home_->pool->room()),
      zmq_door_(std::move(zmq_door)) {}

Status Sender::open_unix_door(ForeignMessages foreign) {
  const PullOptions& options = home_->options;
  SL_ASSIGN(unix_door_, UnixDoor::open(options.runtime_dir, home_->engine->instance(), table_));
  Desk::Settings settings;
  settings.welcome.life = random_instance_id();
  settings.welcome.host = host_id();
  settings.welcome.claim_ms = static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(options.claim_timeout).count());
  settings.welcome.pool = home_->pool_region->descriptor();
  settings.welcome.stamps = home_->stamp_region->descriptor();
  settings.welcome.socket_path = unix_door_->path();
  settings.welcome.engine = home_->engine->descriptor();
  if (home_->plane != nullptr) settings.welcome.plane = home_->plane->endpoint().to_string();
  settings.claim_timeout = options.claim_timeout;
  settings.foreign = std::move(foreign);
  settings.compat_030 = options.compat_030;
  settings.rpc_port =
      home_->plane != nullptr ? home_->plane->endpoint().port : port_of(*home_->engine);
  settings.compat_hold =
      options.buffer_ttl > Duration::zero() ? options.buffer_ttl : Duration(Deadline::kLongest);
  desk_ = std::make_unique<Desk>(table_, std::move(settings));
  unix_door_->start(*desk_);
  zmq_door_->start(*desk_, [this] { unix_door_->nudge(); });
  return {};
}

Sender::~Sender() { stop(); }

void Sender::stop() {
  zmq_door_->stop();
  if (unix_door_ != nullptr) unix_door_->stop();
  table_.drop_all();
}

void Sender::place_in_pool(Payload& payload, std::span<std::byte> bytes) const {
  const auto address = reinterpret_cast<uint64_t>(bytes.data());
  // What a foreign engine reads it finds by its address.
  const uint64_t offset = home_->plane != nullptr ? address : home_->pool->offset_of(bytes);
  payload.places.bytes = bytes.size();
  payload.places.pieces = {{kPoolRegion, offset, bytes.size()}};
  payload.body->addresses = {address};
  payload.body->lengths = {bytes.size()};
}

Status Sender::place_ranges(Payload& payload, std::span<const RegisteredRange> ranges) const {
  if (ranges.empty() || ranges.size() > kMaxGrantPieces) {
    return Status(Reason::kTooLarge, fmt::format("{} ranges in one put; 1 to {} are possible",
                                                 ranges.size(), kMaxGrantPieces));
  }
  OfferBody& body = *payload.body;
  for (const RegisteredRange& range : ranges) {
    const std::span<std::byte> bytes = range.region->bytes();
    if (range.bytes == 0 || range.offset > bytes.size() ||
        range.bytes > bytes.size() - range.offset) {
      return Status(Reason::kOutOfBounds, fmt::format("{} bytes at {} of a region of {}",
                                                      range.bytes, range.offset, bytes.size()));
    }
    const bool in_pool = range.region == home_->pool_region;  // Which all receivers know.
    const auto found = std::find(body.regions.begin(), body.regions.end(), range.region);
    const auto index = in_pool ? kPoolRegion : static_cast<uint32_t>(found - body.regions.begin());
    if (!in_pool && found == body.regions.end()) {
      body.regions.push_back(range.region);
      payload.places.regions.push_back(range.region->descriptor());
    }
    payload.places.pieces.push_back({index, range.offset, range.bytes});
    payload.places.bytes += range.bytes;
    body.addresses.push_back(reinterpret_cast<uint64_t>(bytes.data()) + range.offset);
    body.lengths.push_back(range.bytes);
  }
  if (body.regions.size() <= kMaxGrantRegions) return {};
  return Status(Reason::kTooLarge, fmt::format("ranges of {} regions in one put; {} are possible",
                                               body.regions.size(), kMaxGrantRegions));
}

Result<PullMetadata> Sender::offer(std::string_view key, Payload payload, const PutTerms& terms) {
  OfferBody& body = *payload.body;
  SL_ASSIGN(body.stamp, home_->stamps->take());
  body.generation = next_generation_.fetch_add(1);
  body.bytes = payload.places.bytes;
  body.is_fast_path = terms.is_fast_path;
  payload.places.generation = body.generation;
  payload.places.is_fast_path = terms.is_fast_path;
  payload.places.stamp_offset = body.stamp.offset();
  body.grant = encode_body(payload.places);
  Stamp stamp;
  stamp.generation = body.generation;
  stamp.bytes = body.bytes;
  stamp.key = key_digest(key);
  if (home_->options.checksum && home_->plane == nullptr) {
    stamp.has_sum = 1;
    stamp.sum = payload_digest(payload.bytes);
  }
  body.stamp.write(stamp);

  PullMetadata metadata{told_.host,   told_.port, desk_->rpc_port(), body.addresses,
                        body.lengths, body.bytes, body.is_fast_path, body.generation};
  OfferTerms offer{terms.readers, std::nullopt};
  const Duration ttl = terms.ttl == Duration::zero() ? home_->options.buffer_ttl : terms.ttl;
  if (ttl > Duration::zero()) offer.ttl = Deadline::in(ttl);
  OfferTable::Outcomes woken;
  const Status put = table_.put(key, payload.body, offer, woken, Deadline::Clock::now());
  if (!put.ok()) return put;
  desk_->tell(std::move(woken));
  unix_door_->nudge();
  return metadata;
}

ConnectionInfo Sender::address() const { return {told_.host, told_.port, desk_->rpc_port()}; }

size_t Sender::close(const Deadline& deadline) {
  OfferTable::Outcomes ended;
  table_.close(ended);
  desk_->tell(std::move(ended));
  const size_t claims = table_.wait_idle(deadline);
  stop();
  return claims;
}

void Sender::append_metrics(std::string& out, std::string_view labels) const {
  const TableUsage usage = table_.usage();
  const auto gauge = [&](std::string_view name, std::string_view help, uint64_t value) {
    append_sample(out, name, help, "gauge", labels, static_cast<double>(value));
  };
  const auto counter = [&](std::string_view name, std::string_view help, uint64_t value) {
    append_sample(out, name, help, "counter", labels, static_cast<double>(value));
  };
  gauge("stagelink_pull_offers", "Payloads that may be claimed.", usage.offered);
  gauge("stagelink_pull_claims", "Claims that receivers hold.", usage.claims);
  gauge("stagelink_pull_waiting", "Claims that wait for a put.", usage.waiting);
  counter("stagelink_pull_claims_total", "Keys that receivers have asked for.",
          desk_->claims_asked());
  counter("stagelink_pull_claims_expired_total",
          "Claims whose time was over before they were released.", usage.claims_expired);
  counter("stagelink_pull_claims_dropped_total",
          "Claims whose receiver has gone without releasing them.", usage.claims_dropped);
  counter("stagelink_pull_messages_refused_total",
          "Messages that made no sense, or were for another life.", desk_->refused());
  out +=
      "# HELP stagelink_pull_offers_ended_total Payloads that are no longer offered.\n"
      "# TYPE stagelink_pull_offers_ended_total counter\n";
  for (size_t i = 0; i < kOfferEnds; ++i) {
    out += fmt::format("stagelink_pull_offers_ended_total{{{},how=\"{}\"}} {}\n", labels,
                       kOfferEndNames[i], usage.ended[i]);
  }
}

}  // namespace stagelink::pull
