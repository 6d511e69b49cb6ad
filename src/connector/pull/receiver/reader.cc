#include "connector/pull/receiver/reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace stagelink::pull {
namespace {

// Regions 0 and 1 of every session: the pools and the stamps.
constexpr uint32_t kPoolIndex = 0;
constexpr uint32_t kStampIndex = 1;

Duration time_left(const Deadline& deadline) noexcept {
  // Zero would stand for the engine's own timeout.
  return std::max<Duration>(deadline.left(), std::chrono::microseconds(1));
}

// The engine's connection and the sender's life end together.
Status told(const Status& status, SenderLife& life) {
  if (status.scope() == Scope::kPeer || status.code() == Code::kNotRegistered) life.set_over();
  return status;
}

}  // namespace

// The reads of one claim: first the payload's bytes, then the stamp.
class Reader::Flight {
 public:
  Flight(const Reader& reader, const PartsOfClaim& read, const Deadline& deadline)
      : reader_(reader),
        claim_(*read.claim),
        deadline_(Deadline::earlier(deadline, read.claim->until)) {
    status_ = claim_.still_holds();
    for (const ReadPart& part : read.parts) {
      if (status_.ok()) status_ = add(part);
    }
  }

  void start() {
    if (!status_.ok() || sizes_.empty()) return;
    if (claim_.home->plane != nullptr && !claim_.life->is_omni()) return read_by_plane();
    status_ = choose_session();
    if (!status_.ok()) return;
    submit({local_offsets_, remote_offsets_, sizes_, local_regions_,
            claim_.life->is_omni() ? std::span<const uint32_t>() : remote_regions_});
  }

  void start_stamp() {
    if (!status_.ok() || claim_.life->is_omni()) return;
    auto slot = claim_.home->stamps->take();
    if (!slot.ok()) {
      status_ = slot.status();
      return;
    }
    slot_ = *std::move(slot);
    const uint64_t local = slot_.offset();
    const uint64_t size = sizeof(Stamp);
    session_ = claim_.life->base_session();
    submit({std::span(&local, 1), std::span(&claim_.body.stamp_offset, 1), std::span(&size, 1),
            std::span(&kStampIndex, 1), std::span(&kStampIndex, 1)});
  }

  void wait() {
    if (!transfer_.has_value()) return;
    status_ = told(transfer_->wait(), *claim_.life);
    transfer_.reset();
  }

  // The outcome, once payload and stamp are there.
  ReadOutcome finish() {
    std::optional<uint64_t> sum;
    if (status_.ok() && slot_) {
      const Stamp stamp = slot_.read();
      status_ = check_stamp(stamp, claim_.body.generation, claim_.body.bytes, claim_.digest);
      if (stamp.has_sum == 1) sum = stamp.sum;
    }
    if (status_.ok()) status_ = claim_.still_holds();
    return {std::move(status_), sum};
  }

 private:
  // Cuts a part where the payload's pieces end.
  Status add(const ReadPart& part) {
    const GrantBody& body = claim_.body;
    if (part.offset > body.bytes || part.into.size() > body.bytes - part.offset) {
      return Status(Reason::kOutOfBounds, fmt::format("reading {} bytes at {} of a payload of {}",
                                                      part.into.size(), part.offset, body.bytes));
    }
    if (part.into.empty()) return {};
    SL_ASSIGN(const LocalPlace place, place_of(part.into));
    uint64_t begin = 0;  // Of the piece, in the payload.
    uint64_t done = 0;
    for (const GrantPiece& piece : body.pieces) {
      const uint64_t at = part.offset + done;
      if (at < begin + piece.bytes) {
        const uint64_t within = at - begin;
        const uint64_t bytes = std::min(piece.bytes - within, part.into.size() - done);
        local_offsets_.push_back(place.offset + done);
        remote_offsets_.push_back(piece.offset + within);
        sizes_.push_back(bytes);
        local_regions_.push_back(place.region);
        remote_regions_.push_back(piece.region == kPoolRegion ? kPoolIndex : piece.region + 2);
        done += bytes;
        if (done == part.into.size()) break;
      }
      begin += piece.bytes;
    }
    return {};
  }

  struct LocalPlace {
    uint32_t region;
    uint64_t offset;
  };
  Result<LocalPlace> place_of(std::span<std::byte> into) {
    Home& home = *claim_.home;
    if (home.pool->contains(into)) return LocalPlace{kPoolIndex, home.pool->offset_of(into)};
    std::shared_ptr<const Region> region = reader_.memory_.find(into);
    if (region == nullptr) {
      SL_ASSIGN(Region made, home.engine->register_memory(into.data(), into.size()));
      region = std::make_shared<const Region>(std::move(made));
      has_passing_regions_ = true;
    }
    const auto offset = static_cast<uint64_t>(into.data() - region->bytes().data());
    const auto found = std::find(locals_.begin(), locals_.end(), region);
    const auto index = static_cast<uint32_t>(found - locals_.begin());
    if (found == locals_.end()) locals_.push_back(std::move(region));
    return LocalPlace{index + 2, offset};
  }

  Status choose_session() {
    SenderLife& life = *claim_.life;
    if (life.is_omni()) {
      if (!locals_.empty()) {
        return Status(Reason::kUnsupported, "a payload of 0.30 goes to the pool first");
      }
      SL_ASSIGN(session_, life.session_by_address(claim_.rpc_port));
      return {};
    }
    if (locals_.empty() && claim_.body.regions.empty()) {
      session_ = life.base_session();
      return {};
    }
    SenderLife::Regions regions{{claim_.home->pool_region, claim_.home->stamp_region},
                                {life.welcome().pool, life.welcome().stamps}};
    regions.first.insert(regions.first.end(), locals_.begin(), locals_.end());
    regions.second.insert(regions.second.end(), claim_.body.regions.begin(),
                          claim_.body.regions.end());
    auto session = life.session(regions, /*keep=*/!has_passing_regions_);
    if (!session.ok()) return told(session.status(), life);
    session_ = *std::move(session);
    return {};
  }

  void submit(const RangeList& ranges) {
    auto transfer = session_->read(ranges, time_left(deadline_));
    if (!transfer.ok()) {
      status_ = told(transfer.status(), *claim_.life);
    } else {
      transfer_.emplace(*std::move(transfer));
    }
  }

  void read_by_plane() {
    std::vector<AddressedRange> ranges;
    const auto pool = reinterpret_cast<uint64_t>(claim_.home->pool->memory().data());
    for (size_t i = 0; i < sizes_.size(); ++i) {
      if (local_regions_[i] != kPoolIndex || remote_regions_[i] != kPoolIndex) {
        status_ = Status(Reason::kUnsupported, "device memory is read from pool to pool");
        return;
      }
      ranges.push_back({pool + local_offsets_[i], remote_offsets_[i], sizes_[i]});
    }
    const auto sender = parse_endpoint(claim_.life->welcome().plane);
    status_ = sender.ok() ? claim_.home->plane->read(*sender, ranges, time_left(deadline_))
                          : sender.status();
  }

  const Reader& reader_;
  ClaimState& claim_;
  const Deadline deadline_;
  Status status_;
  std::vector<uint64_t> local_offsets_, remote_offsets_, sizes_;
  std::vector<uint32_t> local_regions_, remote_regions_;
  std::vector<std::shared_ptr<const Region>> locals_;  // From index 2 on.
  bool has_passing_regions_ = false;                   // Registered for this read alone.
  std::shared_ptr<Session> session_;
  std::optional<Transfer> transfer_;
  StampSlot slot_;
};

std::vector<ReadOutcome> Reader::read(std::span<const PartsOfClaim> reads,
                                      const Deadline& deadline) const {
  std::vector<Flight> flights;
  flights.reserve(reads.size());
  for (const PartsOfClaim& read : reads) flights.emplace_back(*this, read, deadline);
  for (Flight& flight : flights) flight.start();
  for (Flight& flight : flights) flight.wait();
  for (Flight& flight : flights) flight.start_stamp();
  for (Flight& flight : flights) flight.wait();
  std::vector<ReadOutcome> outcomes;
  outcomes.reserve(flights.size());
  for (Flight& flight : flights) outcomes.push_back(flight.finish());
  return outcomes;
}

}  // namespace stagelink::pull
