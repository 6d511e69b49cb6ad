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
// In one transfer of several claims; below what the engine takes at a time.
constexpr size_t kMaxMergedRanges = 1 << 16;

Duration time_left(const Deadline& deadline) noexcept {
  // Zero would stand for the engine's own timeout.
  return std::max<Duration>(deadline.left(), std::chrono::microseconds(1));
}

// The engine's connection and the sender's life end together.
Status told(const Status& status, SenderLife& life) {
  if (status.scope() == Scope::kPeer || status.code() == Code::kNotRegistered) life.set_over();
  return status;
}

// A failure of one claim's ranges or time says nothing about those that were read with it.
bool concerns_all(const Status& status) noexcept {
  switch (status.scope()) {
    case Scope::kPeer:
    case Scope::kEngine: return true;
    default: return status.code() == Code::kBusy || status.code() == Code::kCancelled;
  }
}

}  // namespace

// One contiguous piece of a read.
struct Reader::Range {
  uint32_t local_region;
  uint32_t remote_region;
  uint64_t local_offset;
  uint64_t remote_offset;
  uint64_t bytes;

  RangeList list() const noexcept {
    return {{&local_offset, 1},
            {&remote_offset, 1},
            {&bytes, 1},
            {&local_region, 1},
            {&remote_region, 1}};
  }
};

// The arrays of a RangeList.
struct Reader::RangeArrays {
  std::vector<uint64_t> local_offsets, remote_offsets, sizes;
  std::vector<uint32_t> local_regions, remote_regions;

  explicit RangeArrays(size_t count) {
    for (auto* const numbers : {&local_offsets, &remote_offsets, &sizes}) numbers->reserve(count);
    for (auto* const indices : {&local_regions, &remote_regions}) indices->reserve(count);
  }
  void append(std::span<const Range> ranges) {
    for (const Range& range : ranges) {
      local_regions.push_back(range.local_region);
      local_offsets.push_back(range.local_offset);
      remote_regions.push_back(range.remote_region);
      remote_offsets.push_back(range.remote_offset);
      sizes.push_back(range.bytes);
    }
  }
  RangeList list() const noexcept {
    return {local_offsets, remote_offsets, sizes, local_regions, remote_regions};
  }
};

// The reads of one claim: first the payload's bytes, then the stamp.
class Reader::Flight {
 public:
  // Its ranges are appended to `all`, which holds those of the others, too.
  Flight(const Reader& reader, const PartsOfClaim& read, const Deadline& deadline,
         std::vector<Range>& all)
      : reader_(reader),
        claim_(*read.claim),
        deadline_(Deadline::earlier(deadline, read.claim->until)),
        all_(all),
        first_(all.size()) {
    status_ = claim_.still_holds();
    for (const ReadPart& part : read.parts) {
      if (status_.ok()) status_ = add(part);
    }
  }

  // Whether there is something to read for it.
  bool prepare_payload() {
    if (!status_.ok() || count_ == 0) return false;
    if (claim_.home->plane != nullptr && !claim_.life->is_omni()) {
      read_by_plane();
      return false;
    }
    status_ = choose_session();
    return status_.ok();
  }

  bool prepare_stamp() {
    if (!status_.ok() || claim_.life->is_omni()) return false;
    auto slot = claim_.home->stamps->take();
    if (!slot.ok()) {
      status_ = slot.status();
      return false;
    }
    slot_ = *std::move(slot);
    first_ = all_.size();
    count_ = 0;
    add({kStampIndex, kStampIndex, slot_.offset(), claim_.body.stamp_offset, sizeof(Stamp)});
    session_ = claim_.life->base_session();
    return true;
  }

  std::span<const Range> ranges() const noexcept { return std::span(all_).subspan(first_, count_); }
  const std::shared_ptr<Session>& session() const noexcept { return session_; }
  const Deadline& deadline() const noexcept { return deadline_; }

  // Ranges of this one and of others over the same session.
  Result<Transfer> submit(RangeList ranges, const Deadline& deadline) const {
    if (claim_.life->is_omni()) ranges.remote_regions = {};  // By address.
    return session_->read(ranges, time_left(deadline));
  }
  void read_alone() {
    auto transfer = submit_alone();
    end_with(transfer.ok() ? transfer->wait() : transfer.status());
  }
  // What became of its ranges.
  void end_with(const Status& status) { status_ = told(status, *claim_.life); }

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
        add({place.region, piece.region == kPoolRegion ? kPoolIndex : piece.region + 2,
             place.offset + done, piece.offset + within, bytes});
        done += bytes;
        if (done == part.into.size()) break;
      }
      begin += piece.bytes;
    }
    return {};
  }

  Result<Transfer> submit_alone() const {
    if (count_ == 1) return submit(ranges().front().list(), deadline_);
    RangeArrays arrays(count_);
    arrays.append(ranges());
    return submit(arrays.list(), deadline_);
  }

  void add(const Range& range) {
    all_.push_back(range);
    ++count_;
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

  void read_by_plane() {
    std::vector<AddressedRange> ranges;
    const auto pool = reinterpret_cast<uint64_t>(claim_.home->pool->memory().data());
    for (const Range& range : this->ranges()) {
      if (range.local_region != kPoolIndex || range.remote_region != kPoolIndex) {
        status_ = Status(Reason::kUnsupported, "device memory is read from pool to pool");
        return;
      }
      ranges.push_back({pool + range.local_offset, range.remote_offset, range.bytes});
    }
    const auto sender = parse_endpoint(claim_.life->welcome().plane);
    status_ = sender.ok() ? claim_.home->plane->read(*sender, ranges, time_left(deadline_))
                          : sender.status();
  }

  const Reader& reader_;
  ClaimState& claim_;
  const Deadline deadline_;
  Status status_;
  std::vector<Range>& all_;
  size_t first_;  // Of its ranges there: of the payload, then of the stamp.
  size_t count_ = 0;
  std::vector<std::shared_ptr<const Region>> locals_;  // From index 2 on.
  bool has_passing_regions_ = false;                   // Registered for this read alone.
  std::shared_ptr<Session> session_;
  StampSlot slot_;
};

// What is read over one session: the ranges of all its claims as one transfer, which ends with the
// first of their ends. If that fails for a reason that is not everybody's, each is read by itself
// and has an outcome of its own.
class Reader::Trip {
 public:
  explicit Trip(Flight& first)
      : flights_{&first}, ranges_(first.ranges().size()), deadline_(first.deadline()) {}

  // False: not over this session, or there is no more room.
  bool take(Flight& flight) {
    const size_t more = flight.ranges().size();
    if (flight.session() != flights_.front()->session() || ranges_ + more > kMaxMergedRanges) {
      return false;
    }
    flights_.push_back(&flight);
    ranges_ += more;
    deadline_ = Deadline::earlier(deadline_, flight.deadline());
    return true;
  }

  void start() {
    RangeArrays merged(ranges_);
    for (const Flight* const flight : flights_) merged.append(flight->ranges());
    transfer_.emplace(flights_.front()->submit(merged.list(), deadline_));
  }

  // When it returns, nothing touches the memory any more.
  void wait() {
    const Status status = transfer_->ok() ? (*transfer_)->wait() : transfer_->status();
    transfer_.reset();
    if (status.ok()) return;
    for (Flight* const flight : flights_) {
      if (flights_.size() == 1 || concerns_all(status) || flight->deadline().passed()) {
        flight->end_with(status);
      } else {
        flight->read_alone();
      }
    }
  }

 private:
  std::vector<Flight*> flights_;
  size_t ranges_;
  Deadline deadline_;
  std::optional<Result<Transfer>> transfer_;
};

void Reader::fly(std::span<Flight* const> flights) {
  if (flights.size() == 1) return flights.front()->read_alone();
  std::vector<Trip> trips;
  for (Flight* const flight : flights) {
    const bool is_taken =
        std::any_of(trips.rbegin(), trips.rend(), [&](Trip& trip) { return trip.take(*flight); });
    if (!is_taken) trips.emplace_back(*flight);
  }
  for (Trip& trip : trips) trip.start();
  for (Trip& trip : trips) trip.wait();
}

std::vector<ReadOutcome> Reader::read(std::span<const PartsOfClaim> reads,
                                      const Deadline& deadline) const {
  std::vector<Range> ranges;
  ranges.reserve(2 * reads.size());
  std::vector<Flight> flights;
  flights.reserve(reads.size());
  for (const PartsOfClaim& read : reads) flights.emplace_back(*this, read, deadline, ranges);
  std::vector<Flight*> ready;
  ready.reserve(flights.size());
  for (Flight& flight : flights) {
    if (flight.prepare_payload()) ready.push_back(&flight);
  }
  fly(ready);
  ready.clear();
  for (Flight& flight : flights) {
    if (flight.prepare_stamp()) ready.push_back(&flight);
  }
  fly(ready);
  std::vector<ReadOutcome> outcomes;
  outcomes.reserve(flights.size());
  for (Flight& flight : flights) outcomes.push_back(flight.finish());
  return outcomes;
}

}  // namespace stagelink::pull
