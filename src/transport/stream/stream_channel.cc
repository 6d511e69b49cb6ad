#include "transport/stream/stream_channel.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <sys/epoll.h>

#include "transport/socket_io.h"
#include "wire/hello.h"
#include "wire/staged.h"

namespace stagelink::transport {
namespace {

// System calls in each direction before other connections get their turn.
constexpr int kCallsPerRound = 8;
constexpr uint32_t kNoPlace = ~uint32_t{0};

Status broken(const wire::FrameHeader& header, const char* why) {
  return Status(
      Reason::kFrame,
      fmt::format("peer broke the protocol: a {} frame of {} bytes for request {}: {}",
                  wire::frame_name(header.type), header.payload_bytes, header.request_id, why));
}

// What requests are told when the connection is over.
Status as_peer_lost(const Status& why) {
  if (why.code() == Code::kPeerLost) return why;
  return Status(Reason::kConnectionCut, why.to_string());
}

}  // namespace

std::shared_ptr<StreamChannel> StreamChannel::create(Poller& poller, UniqueFd fd, Owner& owner,
                                                     StreamTraits traits) {
  std::shared_ptr<StreamChannel> channel(
      new StreamChannel(poller, std::move(fd), owner, std::move(traits)));
  channel->self_ = channel;
  widen_send_buffer(channel->fd_.get());
  MutexLock lock(channel->mutex_);
  channel->call_loop();  // Which adds the socket to the poller.
  return channel;
}

StreamChannel::StreamChannel(Poller& poller, UniqueFd fd, Owner& owner, StreamTraits traits)
    : poller_(poller),
      owner_(owner),
      fd_(std::move(fd)),
      sender_(traits.checked),
      receiver_(traits.checked),
      grouped_(traits.grouped) {
  if (traits.staging) staging_.emplace(*std::move(traits.staging), Staging::End::kInitiator);
}

StreamChannel::~StreamChannel() = default;

void StreamChannel::post(PostedRequest& request) {
  Status refused;
  {
    MutexLock lock(mutex_);
    if (!closed_.has_value()) {
      request.id = next_id_++;
      posted_.push(request);
      call_loop();
      return;
    }
    refused = *closed_;
  }
  request.on_done(std::move(refused));
}

void StreamChannel::cancel(PostedRequest& request, Status why) {
  MutexLock lock(mutex_);
  if (request.id == 0 || closed_.has_value()) return;  // It has ended, or is about to.
  for (const Cancel& cancel : cancels_) {
    if (cancel.request == &request) return;
  }
  cancels_.push_back({&request, std::move(why)});
  call_loop();
}

Duration StreamChannel::tick() {
  const auto keep = self_;
  if (keep == nullptr) return Deadline::kLongest;
  const Status late(Reason::kTimedOut, "the transfer's deadline passed before its bytes had moved");
  Duration next = Deadline::kLongest;
  bool any_late = false;
  const auto look_at = [&](PostedRequest& request) {
    if (!request.deadline.passed()) {
      next = std::min(next, request.deadline.left());
      return;
    }
    end_early(request, late);
    any_late = true;
  };
  for (Flight& flight : flights_) {
    if (flight.request != nullptr) look_at(*flight.request);
  }
  for (PostedRequest* at = waiting_.first(); at != nullptr;) {
    PostedRequest* const behind = at->next;
    look_at(*at);
    at = behind;
  }
  if (idle()) told_busy_ = false;
  if (any_late) settle(make_progress());
  return next;
}

bool StreamChannel::idle() const noexcept {
  return waiting_.first() == nullptr &&
         std::none_of(flights_.begin(), flights_.end(),
                      [](const Flight& flight) { return flight.request != nullptr; });
}

void StreamChannel::close(const Status& why) {
  const auto keep = std::move(self_);
  if (keep == nullptr) return;
  shut(why);
  deliver_ended();
}

// The loop calls it after post(), cancel() and create().
void StreamChannel::run() {
  const auto keep = self_;
  {
    MutexLock lock(mutex_);
    called_ = false;  // From here on another call would not be lost.
  }
  Status attached;
  if (!attached_) {
    attached_ = true;
    watched_ = EPOLLIN;
    attached = poller_.add(fd_.get(), watched_, this);
  }
  take_posted();
  take_cancels();
  if (!told_busy_ && waiting_.first() != nullptr) {
    told_busy_ = true;
    owner_.on_busy(keep);
  }
  settle(attached.ok() ? make_progress() : attached);
}

void StreamChannel::on_ready(uint32_t epoll_events) {
  const auto keep = self_;
  Status progress;
  if ((epoll_events & ~uint32_t{EPOLLOUT}) != 0) progress = receive_some();
  if (progress.ok()) progress = make_progress();
  settle(progress);
}

void StreamChannel::call_loop() {
  if (called_) return;
  called_ = true;
  poller_.post(*this);
}

void StreamChannel::take_posted() {
  MutexLock lock(mutex_);
  while (PostedRequest* request = posted_.pop()) waiting_.push(*request);
}

void StreamChannel::take_cancels() {
  for (;;) {
    std::optional<Cancel> cancel;
    {
      MutexLock lock(mutex_);
      if (cancels_.empty()) return;
      cancel = std::move(cancels_.back());
      cancels_.pop_back();
    }
    end_early(*cancel->request, cancel->why);
  }
}

// `request` may be one that has ended already, or none at all any more: only its address is used
// unless it is found.
void StreamChannel::end_early(PostedRequest& request, const Status& why) {
  for (Flight& flight : flights_) {
    if (flight.request != &request) continue;
    const uint64_t id = flight.id;
    release(flight);
    flight.used = true;
    flight.id = id;
    sender_.add_frame(wire::FrameType::kCancel, id, {});
    ended_.push_back({&request, why});
    return;
  }
  if (waiting_.remove(request)) ended_.push_back({&request, why});
}

void StreamChannel::release(Flight& flight) noexcept {
  if (sender_.data_source() == &flight.pieces) sender_.drop_data();
  if (receiver_.data_target() == &flight.pieces) receiver_.drop_data();
  if (writing_ == &flight) writing_ = nullptr;
  flight.pieces.clear();
  flight.request = nullptr;
  flight.used = false;
}

void StreamChannel::start_waiting() {
  while (waiting_.first() != nullptr) {
    // Data of one write at a time; reads that wait behind it keep their place.
    if (waiting_.first()->direction == Direction::kWrite && writing_ != nullptr) return;
    Flight* const flight = free_flight();
    if (flight == nullptr) return;
    start(*waiting_.pop(), *flight);
  }
}

void StreamChannel::start(PostedRequest& request, Flight& flight) {
  if (request.deadline.passed()) {
    ended_.push_back({&request, Status(Reason::kTimedOut, "the deadline passed in the queue")});
    return;
  }
  if (Status encoded = encode_batch(request); !encoded.ok()) {
    ended_.push_back({&request, std::move(encoded)});
    return;
  }
  flight.used = true;
  flight.id = request.id;
  flight.request = &request;
  flight.direction = request.direction;
  for (const CopyItem& item : request.items) flight.pieces.add(item.local, item.bytes);
  const bool write = request.direction == Direction::kWrite;
  const size_t bytes = wire::encoded_bytes(batch_);
  auto& out = sender_.open_frame(write ? wire::FrameType::kWrite : wire::FrameType::kRead,
                                 flight.id, static_cast<uint32_t>(bytes));
  wire::encode_to(batch_, out);
  sender_.close_frame();
  if (write && flight.pieces.left() > 0) writing_ = &flight;
}

// Fills batch_. Items that continue each other in the owner's region become one range, except by
// address, where two registrations may lie side by side. Only the regions in use are named. What
// comes of it goes in groups if the owner knows them and they are shorter.
Status StreamChannel::encode_batch(const PostedRequest& request) {
  batch_.by_address = request.by_address;
  batch_.timeout_ms = static_cast<uint32_t>(request.deadline.left_ms());
  batch_.total_bytes = 0;
  batch_.regions.clear();
  batch_.ranges.clear();
  batch_.grouped.clear();
  region_places_.assign(request.remote_regions.size(), kNoPlace);
  for (const CopyItem& item : request.items) {
    wire::WireRange range{.region = 0, .offset = item.remote, .bytes = item.bytes};
    if (!request.by_address) {
      uint32_t& place = region_places_[item.remote_index];
      if (place == kNoPlace) {
        const RemoteRegionRef& ref = request.remote_regions[item.remote_index];
        place = static_cast<uint32_t>(batch_.regions.size());
        batch_.regions.push_back({ref.index, ref.generation});
      }
      range.region = place;
      if (!batch_.ranges.empty()) {
        wire::WireRange& last = batch_.ranges.back();
        if (last.region == place && last.offset + last.bytes == range.offset) {
          last.bytes += range.bytes;
          batch_.total_bytes += range.bytes;
          continue;
        }
      }
    }
    batch_.ranges.push_back(range);
    batch_.total_bytes += range.bytes;
  }
  const size_t count = batch_.ranges.size();
  if (grouped_ && wire::group_ranges(batch_.ranges, batch_.grouped)) {
    batch_.ranges.clear();
  } else {
    batch_.grouped.clear();
  }
  const size_t bytes = wire::encoded_bytes(batch_);
  if (bytes <= wire::kMaxBatchBytes) return {};
  return Status(
      Reason::kTooManyRanges,
      fmt::format("a batch of {} ranges over {} regions needs {} bytes; one request takes "
                  "{}: split it",
                  count, batch_.regions.size(), bytes, wire::kMaxBatchBytes));
}

Status StreamChannel::make_progress() {
  if (!attached_) return {};
  start_waiting();
  SL_TRY(send_some());
  return watch();
}

Status StreamChannel::send_some() {
  for (int call = 0; call < kCallsPerRound; ++call) {
    if (writing_ != nullptr && !sender_.data_under_way()) add_data();
    const auto state = sender_.send(fd_.get());
    if (!state.ok()) {
      Flight* const flight = flight_of(sender_.data_source());
      if (state.status().code() != Code::kNotRegistered || flight == nullptr) return state.status();
      end_early(*flight->request, state.status());
      continue;
    }
    if (*state == FrameSender::State::kFull) return {};
    if (*state == FrameSender::State::kIdle && writing_ == nullptr) return {};
  }
  return {};
}

void StreamChannel::add_data() {
  Flight& flight = *writing_;
  const uint64_t left = flight.pieces.left();
  uint64_t bytes = 0;
  if (staging_ && flight.pieces.shorter_ahead(PieceList::kStagedBytes)) {
    bytes = staging_->send(sender_, flight.id, flight.pieces, left);
  }
  if (bytes == 0) {
    bytes = std::min<uint64_t>(left, wire::kMaxDataBytes);
    sender_.add_data(flight.id, flight.pieces, static_cast<uint32_t>(bytes));
  }
  if (bytes < left) return;
  writing_ = nullptr;
  start_waiting();  // The next write goes out behind the last data frame.
}

Status StreamChannel::receive_some() {
  for (int call = 0; call < kCallsPerRound; ++call) {
    const auto state = receiver_.receive(fd_.get(), *this);
    if (!state.ok()) {
      Flight* const flight = flight_of(receiver_.data_target());
      if (state.status().code() != Code::kNotRegistered || flight == nullptr) return state.status();
      end_early(*flight->request, state.status());
      continue;
    }
    switch (*state) {
      case FrameReceiver::State::kMore: break;
      case FrameReceiver::State::kEmpty: return {};
      case FrameReceiver::State::kEnd:
      case FrameReceiver::State::kEndInsideFrame:
        return Status(Reason::kConnectionCut, "the peer closed the data connection");
    }
  }
  return {};
}

Result<FrameReceiver::Target> StreamChannel::on_header(const wire::FrameHeader& header) {
  if (header.type == wire::FrameType::kBye) return FrameReceiver::Target{};
  if (header.type == wire::FrameType::kStagedAck && staging_) return FrameReceiver::Target{};
  Flight* const flight = flight_of(header.request_id);
  if (flight == nullptr) return broken(header, "no such request is under way");
  if (header.type == wire::FrameType::kDone) return FrameReceiver::Target{};
  const bool staged = header.type == wire::FrameType::kStaged && staging_;
  if (header.type != wire::FrameType::kData && !staged) {
    return broken(header, "not a frame that owners send");
  }
  if (flight->direction == Direction::kWrite) return broken(header, "it is a write");
  if (staged) return FrameReceiver::Target{};
  if (flight->request == nullptr) return FrameReceiver::Target{.collect = false};
  if (header.payload_bytes > flight->pieces.left()) {
    return broken(header, "more bytes than were asked for");
  }
  return FrameReceiver::Target{.collect = false, .pieces = &flight->pieces};
}

Status StreamChannel::on_payload(const wire::FrameHeader& header,
                                 std::span<const std::byte> payload) {
  switch (header.type) {
    case wire::FrameType::kBye: return {};
    case wire::FrameType::kDone: return on_outcome(header, payload);
    default: break;
  }
  SL_ASSIGN(const uint32_t bytes, wire::decode_staged(payload));
  if (header.type == wire::FrameType::kStaged) return on_staged(header, bytes);
  if (staging_->acknowledge(bytes)) return {};
  return broken(header, "more bytes were taken than there are");
}

Status StreamChannel::on_staged(const wire::FrameHeader& header, uint32_t bytes) {
  Flight* const flight = flight_of(header.request_id);
  if (flight == nullptr) return broken(header, "no such request is under way");
  const bool wanted = flight->request != nullptr;  // Else it has ended early.
  if (bytes > StagingArea::kHalfBytes || (wanted && bytes > flight->pieces.left())) {
    return broken(header, "more bytes than were asked for");
  }
  staging_->receive(sender_, wanted ? &flight->pieces : nullptr, bytes);
  return {};
}

Status StreamChannel::on_outcome(const wire::FrameHeader& header,
                                 std::span<const std::byte> payload) {
  SL_ASSIGN(const wire::Outcome outcome, wire::decode_outcome(payload));
  Flight* const flight = flight_of(header.request_id);
  if (flight == nullptr) return broken(header, "no such request is under way");
  PostedRequest* const request = flight->request;
  const bool unfinished = flight->pieces.left() > 0;
  if (request != nullptr && outcome.reason == Reason::kOk && unfinished) {
    return broken(header, "done, but bytes are missing");
  }
  // The owner ends the connection now, which is no second failure.
  damage_told_ = damage_told_ || outcome.reason == Reason::kChecksum;
  release(*flight);
  if (request == nullptr) return {};  // It ended early, and was cancelled then.
  if (unfinished && flight->direction == Direction::kWrite) {
    sender_.add_frame(wire::FrameType::kCancel, header.request_id, {});  // No more data comes.
  }
  ended_.push_back({request, wire::to_status(outcome, "peer")});
  return {};
}

Status StreamChannel::on_data(const wire::FrameHeader&, size_t) { return {}; }

Status StreamChannel::watch() {
  const bool sending = !sender_.idle() || writing_ != nullptr;
  const uint32_t wanted = sending ? EPOLLIN | EPOLLOUT : EPOLLIN;
  if (wanted == watched_) return {};
  watched_ = wanted;
  return poller_.modify(fd_.get(), wanted, this);
}

// The end of each entry point: tells requests that they have ended, and the owner if the connection
// has. `this` may not be touched afterwards unless the caller keeps it.
void StreamChannel::settle(const Status& progress) {
  if (progress.ok()) return deliver_ended();
  const auto keep = std::move(self_);
  if (keep == nullptr) return;
  end_damaged(progress);
  shut(as_peer_lost(progress));
  deliver_ended();
  owner_.on_lost(*this, progress);
}

// Of all requests that end with the connection, the one whose frame was damaged knows why.
void StreamChannel::end_damaged(const Status& progress) {
  if (progress.reason() != Reason::kChecksum || !receiver_.damaged().has_value()) return;
  Flight* const flight = flight_of(receiver_.damaged()->request_id);
  if (flight == nullptr || flight->request == nullptr) return;
  PostedRequest* const request = flight->request;
  release(*flight);
  ended_.push_back({request, progress});
  damage_told_ = true;
}

void StreamChannel::shut(const Status& requests_end_with) {
  {
    MutexLock lock(mutex_);
    closed_ = requests_end_with;
  }
  take_posted();
  poller_.forget(*this);  // Nobody calls the loop for us any more.
  if (attached_) poller_.remove(fd_.get(), this);
  for (Flight& flight : flights_) {
    PostedRequest* const request = flight.request;
    release(flight);
    if (request != nullptr) ended_.push_back({request, requests_end_with});
  }
  while (PostedRequest* request = waiting_.pop()) ended_.push_back({request, requests_end_with});
  if (fd_) break_off(fd_.get());  // The owner need not read what was on its way.
  fd_.reset();
}

void StreamChannel::deliver_ended() {
  while (!ended_.empty()) {
    Ended ended = std::move(ended_.front());
    ended_.erase(ended_.begin());
    {
      // A cancel that came too late must not hit the request's next use.
      MutexLock lock(mutex_);
      ended.request->id = 0;
      std::erase_if(cancels_,
                    [&](const Cancel& cancel) { return cancel.request == ended.request; });
    }
    ended.request->on_done(std::move(ended.status));
  }
}

StreamChannel::Flight* StreamChannel::flight_of(uint64_t id) noexcept {
  for (Flight& flight : flights_) {
    if (flight.used && flight.id == id) return &flight;
  }
  return nullptr;
}

StreamChannel::Flight* StreamChannel::flight_of(const PieceList* pieces) noexcept {
  for (Flight& flight : flights_) {
    if (&flight.pieces == pieces && flight.request != nullptr) return &flight;
  }
  return nullptr;
}

StreamChannel::Flight* StreamChannel::free_flight() noexcept {
  for (Flight& flight : flights_) {
    if (!flight.used) return &flight;
  }
  return nullptr;
}

}  // namespace stagelink::transport
