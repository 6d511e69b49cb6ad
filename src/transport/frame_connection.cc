#include "transport/frame_connection.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "transport/socket_io.h"
#include "wire/frame_sum.h"

namespace stagelink::transport {
namespace {

// Each holds a place in this process's table of descriptors while it waits.
constexpr size_t kMaxQueuedFdFrames = 64;

// Batches and their data belong to transport/stream.
bool is_bulk(wire::FrameType type) noexcept {
  switch (type) {
    case wire::FrameType::kRead:
    case wire::FrameType::kWrite:
    case wire::FrameType::kData:
    case wire::FrameType::kDone:
    case wire::FrameType::kCancel: return true;
    default: return false;
  }
}

Status ended_inside_a_frame() {
  return Status(Reason::kConnectionCut, "the connection ended inside a frame");
}

}  // namespace

Result<std::unique_ptr<FrameConnection>> FrameConnection::create(Poller& poller, UniqueFd fd,
                                                                 Owner& owner) {
  std::unique_ptr<FrameConnection> connection(new FrameConnection(poller, std::move(fd), owner));
  Status added = poller.add(connection->fd_.get(), EPOLLIN, connection.get());
  if (!added.ok()) {
    connection->closed_ = true;
    return added;
  }
  return connection;
}

FrameConnection::FrameConnection(Poller& poller, UniqueFd fd, Owner& owner) noexcept
    : poller_(poller), fd_(std::move(fd)), owner_(owner) {}

FrameConnection::~FrameConnection() {
  if (!closed_) poller_.remove(fd_.get(), this);
  if (destroyed_ != nullptr) *destroyed_ = true;
}

Status FrameConnection::send(wire::FrameType type, uint64_t request_id,
                             std::span<const std::byte> payload, std::vector<UniqueFd> fds) {
  if (closed_) return Status(Reason::kConnectionCut, "the connection is closed");
  if (!broken_.ok()) return broken_;
  if (payload.size() > wire::max_payload_bytes(type) || fds.size() > wire::max_fds(type)) {
    return Status(Reason::kTooLarge,
                  fmt::format("a {} frame cannot carry {} bytes and {} descriptors",
                              wire::frame_name(type), payload.size(), fds.size()));
  }
  const wire::FrameHeader header{
      .type = type,
      .payload_bytes = static_cast<uint32_t>(payload.size()),
      .fd_count = static_cast<uint32_t>(fds.size()),
      .request_id = request_id,
  };
  if (queued_bytes_ + frame_bytes(header) > kMaxQueuedBytes ||
      (!fds.empty() && queue_.size() >= kMaxQueuedFdFrames)) {
    return Status(
        Reason::kRingFull,
        fmt::format("{} bytes wait to be sent to a peer that does not take them", queued_bytes_));
  }
  Outgoing frame;
  frame.bytes = frame_of(header, payload);
  frame.fds = std::move(fds);
  queued_bytes_ += frame.bytes.size();
  queue_.push_back(std::move(frame));
  if (queue_.size() > 1) return {};  // The loop is waiting for room already.
  Status sent = flush();
  if (!sent.ok()) break_off(sent);
  return sent;
}

void FrameConnection::on_ready(uint32_t epoll_events) {
  if (closed_) return;
  if (!broken_.ok()) {
    fail(broken_);
    return;
  }
  if ((epoll_events & EPOLLOUT) != 0) {
    if (Status sent = flush(); !sent.ok()) {
      fail(sent);
      return;
    }
  }
  if ((epoll_events & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0) receive();
}

FrameConnection::Step FrameConnection::receive() {
  std::array<std::byte, kReceiveBytes> buffer;
  auto got = receive_with_fds(fd_.get(), buffer, input_fds_);
  if (!got.ok()) return fail(got.status());
  switch (got->kind) {
    case IoResult::Kind::kWouldBlock: return Step::kGoOn;
    case IoResult::Kind::kEnd: return fail(input_.empty() ? Status() : ended_inside_a_frame());
    case IoResult::Kind::kMoved: break;
  }
  input_.insert(input_.end(), buffer.data(), buffer.data() + got->bytes);
  return deliver_frames();
}

FrameConnection::Step FrameConnection::deliver_frames() {
  size_t at = 0;
  std::optional<wire::FrameHeader> unfinished;
  while (input_.size() - at >= wire::kFrameHeaderBytes) {
    const std::span rest = std::span(input_).subspan(at);
    auto header = open_header(rest);
    if (!header.ok()) return fail(header.status());
    if (is_bulk(header->type)) {
      return fail(Status(Reason::kFrame, fmt::format("a {} frame on a control connection",
                                                     wire::frame_name(header->type))));
    }
    const size_t whole = frame_bytes(*header);
    if (rest.size() < whole) {
      unfinished = *header;
      break;
    }
    if (Status sum = check_sum(*header, rest.first(whole)); !sum.ok()) return fail(sum);
    const auto payload = rest.subspan(wire::kFrameHeaderBytes, header->payload_bytes);
    if (deliver(*header, payload) == Step::kGone) return Step::kGone;
    at += whole;
  }
  if (at == input_.size()) {
    input_ = {};  // Idle peers cost no buffer.
  } else {
    input_.erase(input_.begin(), input_.begin() + static_cast<ptrdiff_t>(at));
  }
  return check_waiting_fds(unfinished);
}

size_t FrameConnection::frame_bytes(const wire::FrameHeader& header) const noexcept {
  const size_t sum = checked_ ? wire::kTrailerBytes : 0;
  return wire::kFrameHeaderBytes + header.payload_bytes + sum;
}

std::vector<std::byte> FrameConnection::frame_of(const wire::FrameHeader& header,
                                                 std::span<const std::byte> payload) const {
  auto raw = wire::encode(header);
  if (checked_) wire::seal_header(raw);
  std::vector<std::byte> bytes;
  bytes.reserve(frame_bytes(header));
  bytes.insert(bytes.end(), raw.begin(), raw.end());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  if (!checked_) return bytes;
  const auto sum = wire::sum_of(bytes);
  bytes.insert(bytes.end(), sum.begin(), sum.end());
  return bytes;
}

Result<wire::FrameHeader> FrameConnection::open_header(std::span<const std::byte> rest) const {
  wire::RawHeader raw;
  std::copy_n(rest.begin(), raw.size(), raw.begin());
  if (checked_ && !wire::open_header(raw)) {
    return Status(Reason::kChecksum, "the header of a frame was damaged on its way");
  }
  return wire::decode_frame_header(raw);
}

// `frame`: from its header to the end of its sum.
Status FrameConnection::check_sum(const wire::FrameHeader& header,
                                  std::span<const std::byte> frame) const {
  if (!checked_) return {};
  const auto summed = frame.first(frame.size() - wire::kTrailerBytes);
  const auto told = frame.last(wire::kTrailerBytes);
  const auto sum = wire::sum_of(summed);
  if (std::equal(sum.begin(), sum.end(), told.begin())) return {};
  return Status(Reason::kChecksum,
                fmt::format("a {} frame of {} bytes was damaged on its way",
                            wire::frame_name(header.type), header.payload_bytes));
}

FrameConnection::Step FrameConnection::deliver(const wire::FrameHeader& header,
                                               std::span<const std::byte> payload) {
  if (input_fds_.size() < header.fd_count) {
    return fail(
        Status(Reason::kFrame,
               fmt::format("a {} frame announces {} descriptors and brings {}",
                           wire::frame_name(header.type), header.fd_count, input_fds_.size())));
  }
  const auto end = input_fds_.begin() + header.fd_count;
  std::vector<UniqueFd> fds(std::make_move_iterator(input_fds_.begin()),
                            std::make_move_iterator(end));
  input_fds_.erase(input_fds_.begin(), end);
  bool destroyed = false;
  destroyed_ = &destroyed;
  const Status status = owner_.on_frame(*this, header, payload, fds);
  if (destroyed) return Step::kGone;
  destroyed_ = nullptr;
  return status.ok() ? Step::kGoOn : fail(status);
}

// Descriptors travel with the first byte of their frame, so those that wait now must belong to the
// one unfinished frame.
FrameConnection::Step FrameConnection::check_waiting_fds(
    const std::optional<wire::FrameHeader>& unfinished) {
  size_t expected = input_.empty() ? 0 : wire::kMaxFds;
  if (unfinished.has_value()) expected = unfinished->fd_count;
  if (input_fds_.size() <= expected) return Step::kGoOn;
  return fail(Status(Reason::kFrame, fmt::format("{} descriptors came that no frame announces",
                                                 input_fds_.size() - expected)));
}

// Sends until the queue is empty or the socket full.
Status FrameConnection::flush() {
  while (!queue_.empty()) {
    Outgoing& frame = queue_.front();
    SL_ASSIGN(const IoResult moved,
              send_with_fds(fd_.get(), std::span(frame.bytes).subspan(frame.sent), frame.fds));
    if (moved.kind == IoResult::Kind::kWouldBlock) break;
    frame.fds.clear();
    frame.sent += moved.bytes;
    queued_bytes_ -= moved.bytes;
    if (frame.sent == frame.bytes.size()) queue_.pop_front();
  }
  watch_for_room(!queue_.empty());
  return {};
}

void FrameConnection::watch_for_room(bool wanted) {
  if (wanted == watches_for_room_) return;
  watches_for_room_ = wanted;
  const uint32_t events = wanted ? EPOLLIN | EPOLLOUT : EPOLLIN;
  if (Status changed = poller_.modify(fd_.get(), events, this); !changed.ok()) break_off(changed);
}

// The loop sees the end of the connection and tells the owner, who may be in the middle of a call.
void FrameConnection::break_off(const Status& why) noexcept {
  if (!broken_.ok()) return;
  broken_ = why;
  ::shutdown(fd_.get(), SHUT_RDWR);
}

FrameConnection::Step FrameConnection::fail(const Status& why) {
  poller_.remove(fd_.get(), this);
  closed_ = true;
  fd_.reset();
  input_fds_.clear();
  owner_.on_closed(*this, why);
  return Step::kGone;
}

}  // namespace stagelink::transport
