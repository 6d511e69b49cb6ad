#include "transport/stream/stream_serving.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>

#include "base/log.h"
#include "transport/socket_io.h"
#include "wire/hello.h"
#include "wire/staged.h"

namespace stagelink::transport {
namespace {

// System calls in each direction before other connections get their turn.
constexpr int kCallsPerRound = 8;
// A range list with more bytes than this is not kept in the queue's slot for the next one.
constexpr size_t kKeptBatchBytes = 1 << 20;
// Ranges of a list that are checked before other connections get their turn: some milliseconds.
constexpr size_t kRangesPerRound = 32 << 10;

Status broken(const wire::FrameHeader& header, const char* why) {
  return Status(
      Reason::kFrame,
      fmt::format("peer broke the protocol: a {} frame of {} bytes for request {}: {}",
                  wire::frame_name(header.type), header.payload_bytes, header.request_id, why));
}

Deadline deadline_of(const wire::BatchHeader& batch) noexcept {
  return Deadline::in(std::chrono::milliseconds(batch.timeout_ms));
}

Status overdue() { return Status(Reason::kTimedOut, "the deadline passed at the owner"); }

Status retired() {
  return Status(Reason::kSuperseded, "a region of the batch was deregistered meanwhile");
}

// What peers do now and then in normal operation is counted, and not worth a line.
bool worth_a_line(Code code) noexcept {
  return code != Code::kSuperseded && code != Code::kTimedOut && code != Code::kCancelled;
}

}  // namespace

Result<std::unique_ptr<StreamServing>> StreamServing::create(const Context& context, UniqueFd fd,
                                                             InstanceId peer, StreamTraits traits,
                                                             Owner& owner) {
  std::unique_ptr<StreamServing> serving(
      new StreamServing(context, std::move(fd), peer, std::move(traits), owner));
  SL_TRY(context.poller.add(serving->fd_.get(), EPOLLIN, serving.get()));
  serving->watched_ = EPOLLIN;
  widen_send_buffer(serving->fd_.get());
  return serving;
}

StreamServing::StreamServing(const Context& context, UniqueFd fd, InstanceId peer,
                             StreamTraits traits, Owner& owner)
    : poller_(context.poller),
      registry_(context.registry),
      metrics_(context.metrics),
      owner_(owner),
      budget_(context.budget),
      peer_(peer),
      fd_(std::move(fd)),
      sender_(traits.checked),
      receiver_(traits.checked) {
  if (traits.staging) staging_.emplace(*std::move(traits.staging), Staging::End::kOwner);
}

StreamServing::~StreamServing() {
  if (fd_) poller_.remove(fd_.get(), this);
  budget_->forget(*this);
  release_read();
  release_write();
  budget_->give_back(queued_batch_bytes_ + (awaits_room_ ? 0 : incoming_list_));
}

bool StreamServing::tick() {
  if (abort_overdue()) {
    if (const Status progress = make_progress(0); !progress.ok()) {
      fail(progress);
      return false;
    }
  }
  told_busy_ = busy();
  return told_busy_;
}

bool StreamServing::has_orphaned_write() const noexcept {
  if (!write_.used) return false;
  pollfd other_end{fd_.get(), POLLRDHUP, 0};  // Also while there still are bytes to be read.
  return ::poll(&other_end, 1, 0) == 1;
}

bool StreamServing::busy() const noexcept { return read_.used || write_.used || queue_size_ > 0; }

void StreamServing::on_ready(uint32_t epoll_events) {
  if (const Status progress = make_progress(epoll_events); !progress.ok()) return fail(progress);
  if (told_busy_ || !busy()) return;
  told_busy_ = true;
  owner_.on_busy(*this);
}

// What frames there are is taken by the next round, as soon as the socket is watched again.
void StreamServing::on_room() {
  awaits_room_ = false;
  (void)watch();
}

Status StreamServing::make_progress(uint32_t epoll_events) {
  if (write_.opening) open_write();
  if ((epoll_events & ~uint32_t{EPOLLOUT}) != 0) SL_TRY(receive_some());
  SL_TRY(send_some());
  return watch();
}

Status StreamServing::receive_some() {
  for (int call = 0; call < kCallsPerRound && may_receive(); ++call) {
    if (write_.used && !write_.answered && write_.batch.retired()) abort_write(retired());
    const auto state = receiver_.receive(fd_.get(), *this);
    if (!state.ok()) {
      const bool ours = receiver_.data_target() == &write_.batch.pieces();
      if (state.status().code() != Code::kNotRegistered || !ours) return state.status();
      abort_write(state.status());
      continue;
    }
    switch (*state) {
      case FrameReceiver::State::kMore: break;
      case FrameReceiver::State::kEmpty: return {};
      case FrameReceiver::State::kEnd: return Status(Reason::kPeerLost, "the peer has closed");
      case FrameReceiver::State::kEndInsideFrame:
        return Status(Reason::kConnectionCut, "the data connection ended inside a frame");
    }
  }
  return {};
}

Status StreamServing::send_some() {
  for (int call = 0; call < kCallsPerRound; ++call) {
    if (read_.used && read_.batch.retired()) abort_read(retired());
    prepare_data();
    if (opening_read_ && sender_.idle()) return {};  // The next step has its own round.
    const auto state = sender_.send(fd_.get());
    if (!state.ok()) {
      const bool ours = sender_.data_source() == &read_.batch.pieces();
      if (state.status().code() != Code::kNotRegistered || !ours) return state.status();
      abort_read(state.status());
      continue;
    }
    if (*state == FrameSender::State::kFull) return {};
    if (*state == FrameSender::State::kIdle && !read_.used && queue_size_ == 0) return {};
  }
  return {};
}

// Between data frames: ends the read that has sent its last one, begins the next, and adds the next
// data frame. kDone goes out in one call with the last of them.
void StreamServing::prepare_data() {
  if (sender_.data_under_way()) return;
  if (read_.used && read_.answered) finish_read();
  while (!read_.used && open_next_read()) {
  }
  if (!read_.used) return;
  read_.left -= add_data();
  if (read_.left > 0) return;
  read_.done_at = sender_.behind_bytes();
  answer(read_.id, {});
  read_.done_bytes = sender_.behind_bytes() - read_.done_at;
  read_.answered = true;
}

uint64_t StreamServing::add_data() {
  PieceList& pieces = read_.batch.pieces();
  if (staging_ && pieces.shorter_ahead(PieceList::kStagedBytes)) {
    if (const size_t staged = staging_->send(sender_, read_.id, pieces, read_.left)) return staged;
  }
  const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(read_.left, wire::kMaxDataBytes));
  sender_.add_data(read_.id, pieces, bytes);
  return bytes;
}

// Its last byte has been sent.
void StreamServing::finish_read() {
  read_.used = false;
  release_read();
  metrics_.add(metrics::Counter::kServedBytes, read_.total);
}

void StreamServing::release_read() {
  read_.batch.release();
  opening_read_ = false;
  budget_->give_back(std::exchange(read_.list_bytes, 0));
}

void StreamServing::release_write() {
  write_.batch.release();
  write_.opening = false;
  budget_->give_back(std::exchange(write_.list_bytes, 0));
}

bool StreamServing::open_next_read() {
  if (queue_size_ == 0) return false;
  QueuedRead& next = queue_[queue_first_];
  Status opened;
  if (!next.cancelled) {
    if (next.deadline.passed()) {
      opened = overdue();
    } else if (!opening_read_) {
      opened = read_.batch.begin(next.batch, registry_, Direction::kRead);
      opening_read_ = opened.ok();
    }
    if (opened.ok()) {
      const auto complete = read_.batch.go_on(kRangesPerRound);
      if (complete.ok() && !*complete) return false;
      opened = complete.status();
    }
    read_.total = read_.left = read_.batch.pieces().left();
    read_.used = opened.ok() && read_.left > 0;
    if (!read_.used) answer(next.id, opened);
  }
  read_.answered = false;
  read_.id = next.id;
  read_.deadline = next.deadline;
  read_.list_bytes = next.batch_bytes;
  opening_read_ = false;
  const bool was_long = wire::range_count(next.batch) >= kRangesPerRound;
  pop_read();
  if (read_.used) return false;
  release_read();
  return !was_long;
}

void StreamServing::pop_read() {
  QueuedRead& first = queue_[queue_first_];
  if (first.batch_bytes > kKeptBatchBytes) first.batch = {};
  queued_batch_bytes_ -= first.batch_bytes;
  queue_first_ = (queue_first_ + 1) % kMaxQueuedReads;
  --queue_size_;
}

Result<FrameReceiver::Target> StreamServing::on_header(const wire::FrameHeader& header) {
  switch (header.type) {
    case wire::FrameType::kCancel:
    case wire::FrameType::kBye: return FrameReceiver::Target{};
    case wire::FrameType::kWrite:
      if (write_.used) return broken(header, "the write before it is not over");
      [[fallthrough]];
    case wire::FrameType::kRead:
      incoming_list_ = header.payload_bytes;
      awaits_room_ = incoming_list_ > 0 && !budget_->take(incoming_list_, *this);
      return FrameReceiver::Target{};
    case wire::FrameType::kStagedAck:
      if (staging_) return FrameReceiver::Target{};
      return broken(header, "nothing is staged here");
    case wire::FrameType::kStaged:
      if (!staging_) return broken(header, "nothing is staged here");
      break;
    case wire::FrameType::kData: break;
    default: return broken(header, "not a frame that initiators send");
  }
  if (!write_.used || write_.id != header.request_id) return broken(header, "no such write");
  if (header.type == wire::FrameType::kStaged) return FrameReceiver::Target{};
  if (header.payload_bytes > write_.left) return broken(header, "more bytes than were announced");
  if (write_.answered) return FrameReceiver::Target{.collect = false};
  return FrameReceiver::Target{.collect = false, .pieces = &write_.batch.pieces()};
}

Status StreamServing::on_payload(const wire::FrameHeader& header,
                                 std::span<const std::byte> payload) {
  switch (header.type) {
    case wire::FrameType::kRead: return queue_read(header.request_id, payload);
    case wire::FrameType::kWrite: return begin_write(header.request_id, payload);
    case wire::FrameType::kCancel: cancel(header.request_id); return {};
    case wire::FrameType::kStaged: return on_staged(header, payload);
    case wire::FrameType::kStagedAck: return on_staged_ack(header, payload);
    default: return {};
  }
}

Status StreamServing::on_staged(const wire::FrameHeader& header,
                                std::span<const std::byte> payload) {
  SL_ASSIGN(const uint32_t bytes, wire::decode_staged(payload));
  if (bytes > StagingArea::kHalfBytes || bytes > write_.left) {
    return broken(header, "more bytes than were announced");
  }
  staging_->receive(sender_, write_.answered ? nullptr : &write_.batch.pieces(), bytes);
  return on_data(header, bytes);
}

Status StreamServing::on_staged_ack(const wire::FrameHeader& header,
                                    std::span<const std::byte> payload) {
  SL_ASSIGN(const uint32_t bytes, wire::decode_staged(payload));
  if (staging_->acknowledge(bytes)) return {};
  return broken(header, "more bytes were taken than there are");
}

Status StreamServing::on_data(const wire::FrameHeader&, size_t bytes) {
  write_.left -= bytes;
  if (write_.left > 0) return {};
  write_.used = false;
  if (write_.answered) return {};
  release_write();
  answer(write_.id, {});
  metrics_.add(metrics::Counter::kServedBytes, write_.total);
  return {};
}

Status StreamServing::queue_read(uint64_t id, std::span<const std::byte> payload) {
  QueuedRead& slot = queue_[(queue_first_ + queue_size_) % kMaxQueuedReads];
  SL_TRY(wire::decode_batch_header_to(payload, slot.batch));
  slot.cancelled = false;
  slot.id = id;
  slot.deadline = deadline_of(slot.batch);
  slot.batch_bytes = std::exchange(incoming_list_, 0);
  queued_batch_bytes_ += slot.batch_bytes;
  ++queue_size_;
  return {};
}

Status StreamServing::begin_write(uint64_t id, std::span<const std::byte> payload) {
  SL_TRY(wire::decode_batch_header_to(payload, write_batch_));
  owner_.on_write(*this);
  write_.list_bytes = std::exchange(incoming_list_, 0);
  write_.id = id;
  write_.deadline = deadline_of(write_batch_);
  write_.total = write_.left = write_batch_.total_bytes;
  write_.answered = false;
  write_.used = write_.left > 0;
  write_.opening = true;
  const Status begun = write_.batch.begin(write_batch_, registry_, Direction::kWrite);
  begun.ok() ? open_write() : end_opening(begun);
  return {};
}

void StreamServing::open_write() {
  const auto complete = write_.batch.go_on(kRangesPerRound);
  if (!complete.ok() || *complete) end_opening(complete.status());
}

void StreamServing::end_opening(const Status& opened) {
  write_.opening = false;
  if (write_batch_.ranges.size() > kKeptBatchBytes / sizeof(wire::WireRange)) write_batch_ = {};
  if (!opened.ok()) return abort_write(opened);
  if (write_.used) return;
  release_write();
  answer(write_.id, {});
}

// The peer wants no more of a request, and sends no more for it. One that is unknown has been
// answered before the cancel arrived.
void StreamServing::cancel(uint64_t id) {
  const Status why(Reason::kCancelled, "cancelled by the initiator");
  if (write_.used && write_.id == id) {
    if (!write_.answered) abort_write(why);
    write_.used = false;
    return;
  }
  if (read_.used && read_.id == id) {
    if (!read_.answered) abort_read(why);
    return;
  }
  for (size_t i = 0; i < queue_size_; ++i) {
    QueuedRead& queued = queue_[(queue_first_ + i) % kMaxQueuedReads];
    if (queued.id != id || queued.cancelled) continue;
    queued.cancelled = true;
    return answer(id, why);
  }
}

// The regions are free when it returns. The data frame under way is completed with zeros, and its
// request ends with `why`, also if success was about to be told.
void StreamServing::abort_read(const Status& why) {
  if (sender_.data_source() == &read_.batch.pieces()) sender_.drop_data();
  if (read_.answered) {
    if (!sender_.data_under_way()) return finish_read();  // It was too late to fail.
    sender_.erase_behind(read_.done_at, read_.done_bytes);
  }
  release_read();
  read_.used = false;
  answer(read_.id, why);
}

void StreamServing::abort_write(const Status& why) {
  if (receiver_.data_target() == &write_.batch.pieces()) receiver_.drop_data();
  release_write();
  write_.answered = true;
  answer(write_.id, why);
}

bool StreamServing::abort_overdue() {
  bool any = false;
  // A list that is being checked holds regions, too.
  if ((read_.used || opening_read_) && read_.batch.retired()) {
    if (read_.used) {
      abort_read(retired());
    } else {
      release_read();  // Checked anew, it is refused.
    }
    any = true;
  } else if (read_.used && !read_.answered && read_.deadline.passed()) {
    abort_read(overdue());
    any = true;
  }
  if (!write_.used || write_.answered) return any;
  if (write_.batch.retired()) {
    abort_write(retired());
  } else if (write_.deadline.passed()) {
    abort_write(overdue());
  } else {
    return any;
  }
  return true;
}

void StreamServing::answer(uint64_t id, const Status& status) {
  if (!status.ok()) {
    metrics_.fail(status.reason());
    if (worth_a_line(status.code())) log_peer_failure("stream server refuses a request", status);
  }
  sender_.add_frame(wire::FrameType::kDone, id,
                    wire::encode(wire::Outcome{status.reason(), std::string(status.message())}));
}

void StreamServing::log_peer_failure(const char* what, const Status& status) const {
  log_failure(what, Status(status.reason(),
                           fmt::format("peer {}: {}", peer_.to_string(), status.message())));
}

bool StreamServing::may_receive() const noexcept {
  return !awaits_room_ && !write_.opening && queue_size_ < kMaxQueuedReads &&
         queued_batch_bytes_ <= kMaxQueuedBatchBytes && sender_.queued_bytes() <= kMaxAnswerBytes;
}

Status StreamServing::watch() {
  uint32_t wanted = may_receive() ? uint32_t{EPOLLIN} : 0;
  if (!sender_.idle() || read_.used || queue_size_ > 0 || write_.opening) wanted |= EPOLLOUT;
  if (wanted == watched_) return {};
  watched_ = wanted;
  return poller_.modify(fd_.get(), wanted, this);
}

// The initiator learns which of its requests was damaged, if the socket takes the answer at once.
void StreamServing::tell_damaged(const Status& why) {
  const auto& damaged = receiver_.damaged();
  if (why.reason() != Reason::kChecksum || !damaged.has_value()) return;
  switch (damaged->type) {
    case wire::FrameType::kRead:
    case wire::FrameType::kWrite:
    case wire::FrameType::kData: break;
    default: return;
  }
  sender_.add_frame(wire::FrameType::kDone, damaged->request_id,
                    wire::encode(wire::Outcome{why.reason(), std::string(why.message())}));
  for (int call = 0; call < kCallsPerRound; ++call) {
    const auto state = sender_.send(fd_.get());
    if (!state.ok() || *state != FrameSender::State::kMore) return;
  }
}

void StreamServing::fail(const Status& why) {
  if (why.code() != Code::kPeerLost) {
    metrics_.fail(why.reason());
    log_peer_failure("stream server ends a connection", why);
  }
  tell_damaged(why);
  poller_.remove(fd_.get(), this);
  fd_.reset();
  release_read();
  release_write();
  owner_.on_closed(*this, why.reason() == Reason::kPeerLost ? Status() : why);
}

}  // namespace stagelink::transport
