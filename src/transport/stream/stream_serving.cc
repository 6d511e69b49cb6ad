#include "transport/stream/stream_serving.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>
#include <sys/epoll.h>

#include "base/log.h"
#include "transport/socket_io.h"
#include "wire/hello.h"

namespace stagelink::transport {
namespace {

// System calls in each direction before other connections get their turn.
constexpr int kCallsPerRound = 8;
// A range list with more bytes than this is not kept in the queue's slot for the next one.
constexpr size_t kKeptBatchBytes = 1 << 20;

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
                                                             InstanceId peer, bool checked,
                                                             Owner& owner) {
  std::unique_ptr<StreamServing> serving(
      new StreamServing(context, std::move(fd), peer, checked, owner));
  SL_TRY(context.poller.add(serving->fd_.get(), EPOLLIN, serving.get()));
  serving->watched_ = EPOLLIN;
  widen_send_buffer(serving->fd_.get());
  return serving;
}

StreamServing::StreamServing(const Context& context, UniqueFd fd, InstanceId peer, bool checked,
                             Owner& owner)
    : poller_(context.poller),
      registry_(context.registry),
      metrics_(context.metrics),
      owner_(owner),
      peer_(peer),
      fd_(std::move(fd)),
      sender_(checked),
      receiver_(checked) {}

StreamServing::~StreamServing() {
  if (fd_) poller_.remove(fd_.get(), this);
}

void StreamServing::tick() {
  abort_overdue();
  if (const Status progress = make_progress(0); !progress.ok()) fail(progress);
}

void StreamServing::on_ready(uint32_t epoll_events) {
  if (const Status progress = make_progress(epoll_events); !progress.ok()) fail(progress);
}

Status StreamServing::make_progress(uint32_t epoll_events) {
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
  if (!read_.used) begin_next_read();
  if (!read_.used) return;
  const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(read_.left, wire::kMaxDataBytes));
  sender_.add_data(read_.id, read_.batch.pieces(), bytes);
  read_.left -= bytes;
  if (read_.left > 0) return;
  read_.done_at = sender_.behind_bytes();
  answer(read_.id, {});
  read_.done_bytes = sender_.behind_bytes() - read_.done_at;
  read_.answered = true;
}

// Its last byte has been sent.
void StreamServing::finish_read() {
  read_.used = false;
  read_.batch.release();
  metrics_.add(metrics::Counter::kServedBytes, read_.total);
}

void StreamServing::begin_next_read() {
  while (queue_size_ > 0 && !read_.used) {
    QueuedRead& next = queue_[queue_first_];
    if (!next.cancelled) {
      Status opened = next.deadline.passed()
                          ? overdue()
                          : read_.batch.open(next.batch, registry_, Direction::kRead);
      read_.total = read_.left = read_.batch.pieces().left();
      if (!opened.ok() || read_.left == 0) {
        read_.batch.release();
        answer(next.id, opened);
      } else {
        read_.used = true;
        read_.answered = false;
        read_.id = next.id;
        read_.deadline = next.deadline;
      }
    }
    if (next.batch_bytes > kKeptBatchBytes) next.batch = {};
    queued_batch_bytes_ -= next.batch_bytes;
    queue_first_ = (queue_first_ + 1) % kMaxQueuedReads;
    --queue_size_;
  }
}

Result<FrameReceiver::Target> StreamServing::on_header(const wire::FrameHeader& header) {
  switch (header.type) {
    case wire::FrameType::kRead:
    case wire::FrameType::kCancel:
    case wire::FrameType::kBye: return FrameReceiver::Target{};
    case wire::FrameType::kWrite:
      if (write_.used) return broken(header, "the write before it is not over");
      return FrameReceiver::Target{};
    case wire::FrameType::kData: break;
    default: return broken(header, "not a frame that initiators send");
  }
  if (!write_.used || write_.id != header.request_id) return broken(header, "no such write");
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
    default: return {};
  }
}

Status StreamServing::on_data(const wire::FrameHeader&, size_t bytes) {
  write_.left -= bytes;
  if (write_.left > 0) return {};
  write_.used = false;
  if (write_.answered) return {};
  write_.batch.release();
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
  slot.batch_bytes = payload.size();
  queued_batch_bytes_ += payload.size();
  ++queue_size_;
  return {};
}

Status StreamServing::begin_write(uint64_t id, std::span<const std::byte> payload) {
  SL_TRY(wire::decode_batch_header_to(payload, write_batch_));
  const Status opened = write_.batch.open(write_batch_, registry_, Direction::kWrite);
  write_.id = id;
  write_.deadline = deadline_of(write_batch_);
  write_.total = write_.left = write_batch_.total_bytes;
  write_.answered = !opened.ok();
  write_.used = write_.left > 0;
  if (payload.size() > kKeptBatchBytes) write_batch_ = {};
  if (!write_.used) write_.batch.release();
  if (!write_.used || write_.answered) answer(id, opened);
  return {};
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
  read_.batch.release();
  read_.used = false;
  answer(read_.id, why);
}

void StreamServing::abort_write(const Status& why) {
  if (receiver_.data_target() == &write_.batch.pieces()) receiver_.drop_data();
  write_.batch.release();
  write_.answered = true;
  answer(write_.id, why);
}

void StreamServing::abort_overdue() {
  if (read_.used && !read_.answered && read_.deadline.passed()) abort_read(overdue());
  if (!write_.used || write_.answered) return;
  if (write_.batch.retired()) {
    abort_write(retired());
  } else if (write_.deadline.passed()) {
    abort_write(overdue());
  }
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
  return queue_size_ < kMaxQueuedReads && queued_batch_bytes_ <= kMaxQueuedBatchBytes &&
         sender_.queued_bytes() <= kMaxAnswerBytes;
}

Status StreamServing::watch() {
  uint32_t wanted = may_receive() ? uint32_t{EPOLLIN} : 0;
  if (!sender_.idle() || read_.used || queue_size_ > 0) wanted |= EPOLLOUT;
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
  read_.batch.release();
  write_.batch.release();
  owner_.on_closed(*this, why.reason() == Reason::kPeerLost ? Status() : why);
}

}  // namespace stagelink::transport
