#include "transport/stream/frame_receiver.h"

#include <algorithm>

#include "transport/socket_io.h"

namespace stagelink::transport {
namespace {

// The kernel takes at most 1024 pieces in one call; one is kept for the next header.
constexpr size_t kMaxPieces = 1024;
constexpr size_t kSinkBytes = 64 << 10;
// A payload is collected in steps that grow with what has arrived: an announcement alone costs no
// memory.
constexpr size_t kFirstStep = 64 << 10;
// A buffer larger than this is given back after use.
constexpr size_t kKeptBytes = 1 << 20;

}  // namespace

Result<FrameReceiver::State> FrameReceiver::receive(int fd, Handler& handler) {
  std::array<iovec, kMaxPieces> pieces;
  std::array<std::byte, kSinkBytes> sink;  // Never read.
  const size_t used = prepare(pieces, sink);
  size_t asked = 0;
  for (size_t i = 0; i < used; ++i) asked += pieces[i].iov_len;
  ++calls_;
  SL_ASSIGN(const IoResult moved, receive_pieces(fd, {pieces.data(), used}));
  if (moved.kind == IoResult::Kind::kWouldBlock) return State::kEmpty;
  if (moved.kind == IoResult::Kind::kEnd) {
    return in_payload_ || header_got_ > 0 ? State::kEndInsideFrame : State::kEnd;
  }
  SL_TRY(take(moved.bytes, handler));
  return moved.bytes < asked ? State::kEmpty : State::kMore;
}

// Lists where the next bytes go: the rest of the payload, then the header of the next frame.
size_t FrameReceiver::prepare(std::span<iovec> into, std::span<std::byte> sink) {
  size_t used = 0;
  size_t listed = 0;
  if (in_payload_ && target_.collect) {
    const size_t step = std::min<size_t>(payload_left_, std::max(kFirstStep, collected_got_));
    collected_.resize(collected_got_ + step);
    into[used++] = {collected_.data() + collected_got_, step};
    listed = step;
  } else if (in_payload_ && target_.pieces != nullptr) {
    used = target_.pieces->gather(into.first(into.size() - 1), payload_left_);
    for (size_t i = 0; i < used; ++i) listed += into[i].iov_len;
  } else if (in_payload_) {
    listed = std::min<size_t>(payload_left_, sink.size());
    into[used++] = {sink.data(), listed};
  }
  if (!in_payload_ || listed == payload_left_) {
    into[used++] = {raw_header_.data() + header_got_, raw_header_.size() - header_got_};
  }
  return used;
}

Status FrameReceiver::take(size_t bytes, Handler& handler) {
  if (in_payload_) {
    const size_t part = std::min<size_t>(bytes, payload_left_);
    payload_left_ -= static_cast<uint32_t>(part);
    bytes -= part;
    if (target_.collect) {
      collected_got_ += part;
    } else {
      if (target_.pieces != nullptr) target_.pieces->advance(part);
      data_bytes_ += part;
      SL_TRY(handler.on_data(header_, part));
    }
    if (payload_left_ == 0) SL_TRY(end_payload(handler));
  }
  header_got_ += bytes;
  if (header_got_ == raw_header_.size()) return begin_frame(handler);
  return {};
}

Status FrameReceiver::begin_frame(Handler& handler) {
  header_got_ = 0;
  SL_ASSIGN(header_, wire::decode_frame_header(raw_header_));
  SL_ASSIGN(target_, handler.on_header(header_));
  payload_left_ = header_.payload_bytes;
  collected_got_ = 0;
  in_payload_ = true;
  return payload_left_ == 0 ? end_payload(handler) : Status();
}

Status FrameReceiver::end_payload(Handler& handler) {
  in_payload_ = false;
  const bool collect = target_.collect;
  target_ = {};
  if (!collect) return {};
  Status status = handler.on_payload(header_, {collected_.data(), collected_got_});
  if (collected_.capacity() > kKeptBytes) collected_ = {};
  return status;
}

}  // namespace stagelink::transport
