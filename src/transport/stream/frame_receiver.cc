#include "transport/stream/frame_receiver.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "transport/socket_io.h"

namespace stagelink::transport {
namespace {

// The kernel takes at most 1024 pieces in one call; two are kept for a trailer and the next header.
constexpr size_t kMaxPieces = 1024;
constexpr size_t kSinkBytes = 64 << 10;
// A payload is collected in steps that grow with what has arrived: an announcement alone costs no
// memory.
constexpr size_t kFirstStep = 64 << 10;
// A buffer larger than this is given back after use.
constexpr size_t kKeptBytes = 1 << 20;

// Puts the first `bytes` of `pieces` into the sum.
void add_pieces(wire::FrameSum& sum, std::span<const iovec> pieces, size_t bytes) noexcept {
  for (const iovec& piece : pieces) {
    const size_t part = std::min(bytes, piece.iov_len);
    sum.add({static_cast<const std::byte*>(piece.iov_base), part});
    bytes -= part;
    if (bytes == 0) return;
  }
}

}  // namespace

FrameReceiver::FrameReceiver(bool checked)
    : checks_(checked ? std::make_unique<Checks>() : nullptr) {}

Result<FrameReceiver::State> FrameReceiver::receive(int fd, Handler& handler) {
  std::array<iovec, kMaxPieces> pieces;
  std::array<std::byte, kSinkBytes> sink;  // For what is thrown away, and for small pieces.
  const size_t used = prepare(pieces, sink);
  size_t asked = 0;
  for (size_t i = 0; i < used; ++i) asked += pieces[i].iov_len;
  ++calls_;
  SL_ASSIGN(const IoResult moved, receive_pieces(fd, {pieces.data(), used}));
  if (moved.kind == IoResult::Kind::kWouldBlock) return State::kEmpty;
  if (moved.kind == IoResult::Kind::kEnd) {
    return in_payload_ || header_got_ > 0 ? State::kEndInsideFrame : State::kEnd;
  }
  SL_TRY(take(moved.bytes, {pieces.data(), used}, handler));
  return moved.bytes < asked ? State::kEmpty : State::kMore;
}

// Lists where the next bytes go: the rest of the payload and its trailer, then the header of the
// next frame.
size_t FrameReceiver::prepare(std::span<iovec> into, std::span<std::byte> sink) {
  size_t used = 0;
  size_t listed = 0;
  staged_ = false;
  if (in_payload_ && target_.collect) {
    const size_t step = std::min<size_t>(payload_left_, std::max(kFirstStep, collected_got_));
    collected_.resize(collected_got_ + step);
    into[used++] = {collected_.data() + collected_got_, step};
    listed = step;
  } else if (in_payload_ && target_.pieces != nullptr &&
             target_.pieces->shorter_ahead(PieceList::kSmallBytes)) {
    staged_ = true;
    listed = std::min<size_t>(payload_left_, sink.size());
    into[used++] = {sink.data(), listed};
  } else if (in_payload_ && target_.pieces != nullptr) {
    used = target_.pieces->gather(into.first(into.size() - 2), payload_left_);
    for (size_t i = 0; i < used; ++i) listed += into[i].iov_len;
  } else if (in_payload_) {
    listed = std::min<size_t>(payload_left_, sink.size());
    into[used++] = {sink.data(), listed};
  }
  if (!in_payload_ || listed == payload_left_) {
    if (in_payload_ && checks_ != nullptr) {
      const size_t got = checks_->trailer_got;
      into[used++] = {checks_->trailer.data() + got, checks_->trailer.size() - got};
    }
    into[used++] = {raw_header_.data() + header_got_, raw_header_.size() - header_got_};
  }
  return used;
}

Status FrameReceiver::take(size_t bytes, std::span<const iovec> pieces, Handler& handler) {
  if (in_payload_) {
    const size_t part = std::min<size_t>(bytes, payload_left_);
    if (part > 0) SL_TRY(take_payload(part, pieces, handler));
    bytes -= part;
    if (payload_left_ == 0 && checks_ != nullptr) {
      bytes -= take_trailer(bytes);
      if (checks_->trailer_got < checks_->trailer.size()) return {};
      SL_TRY(check_sum(handler));
    }
    if (payload_left_ == 0) SL_TRY(end_payload(handler));
  }
  header_got_ += bytes;
  if (header_got_ == raw_header_.size()) return begin_frame(handler);
  return {};
}

Status FrameReceiver::take_payload(size_t bytes, std::span<const iovec> pieces, Handler& handler) {
  if (checks_ != nullptr) add_pieces(checks_->sum, pieces, bytes);
  payload_left_ -= static_cast<uint32_t>(bytes);
  if (target_.collect) {
    collected_got_ += bytes;
    return {};
  }
  if (target_.pieces != nullptr) {
    if (staged_) {
      target_.pieces->copy_in({static_cast<const std::byte*>(pieces.front().iov_base), bytes});
    }
    target_.pieces->advance(bytes);
  }
  data_bytes_ += bytes;
  if (checks_ == nullptr || payload_left_ > 0) return handler.on_data(header_, bytes);
  checks_->untold = bytes;
  return {};
}

size_t FrameReceiver::take_trailer(size_t bytes) noexcept {
  const size_t part = std::min(bytes, checks_->trailer.size() - checks_->trailer_got);
  checks_->trailer_got += part;
  return part;
}

Status FrameReceiver::check_sum(Handler& handler) {
  const bool given_up =
      header_.type == wire::FrameType::kData && checks_->trailer == wire::void_sum(checks_->header);
  if (!given_up && checks_->trailer != checks_->sum.trailer()) {
    damaged_ = header_;
    return Status(
        Reason::kChecksum,
        fmt::format("a {} frame of {} bytes for request {} was damaged on its way",
                    wire::frame_name(header_.type), header_.payload_bytes, header_.request_id));
  }
  const size_t untold = std::exchange(checks_->untold, 0);
  return untold > 0 ? handler.on_data(header_, untold) : Status();
}

Status FrameReceiver::open_header() {
  checks_->header = raw_header_;
  checks_->trailer_got = 0;
  checks_->sum.begin(raw_header_);
  if (wire::open_header(raw_header_)) return {};
  return Status(Reason::kChecksum, "the header of a frame was damaged on its way");
}

Status FrameReceiver::begin_frame(Handler& handler) {
  header_got_ = 0;
  if (checks_ != nullptr) SL_TRY(open_header());
  SL_ASSIGN(header_, wire::decode_frame_header(raw_header_));
  SL_ASSIGN(target_, handler.on_header(header_));
  payload_left_ = header_.payload_bytes;
  collected_got_ = 0;
  in_payload_ = true;
  return payload_left_ == 0 && checks_ == nullptr ? end_payload(handler) : Status();
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
