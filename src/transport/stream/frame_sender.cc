#include "transport/stream/frame_sender.h"

#include <algorithm>
#include <array>
#include <utility>

#include "transport/socket_io.h"

namespace stagelink::transport {
namespace {

// The kernel takes at most 1024 pieces in one call.
constexpr size_t kMaxPieces = 1024;
// A buffer larger than this is given back once it is empty.
constexpr size_t kKeptBytes = 1 << 20;

constexpr std::array<std::byte, 64 << 10> kZeros{};

size_t gather_zeros(std::span<iovec> into, uint64_t bytes) noexcept {
  size_t used = 0;
  while (bytes > 0 && used < into.size()) {
    const uint64_t part = std::min<uint64_t>(bytes, kZeros.size());
    into[used++] = {const_cast<std::byte*>(kZeros.data()), part};
    bytes -= part;
  }
  return used;
}

uint64_t bytes_of(std::span<const iovec> pieces) noexcept {
  uint64_t sum = 0;
  for (const iovec& piece : pieces) sum += piece.iov_len;
  return sum;
}

}  // namespace

void FrameSender::add_frame(wire::FrameType type, uint64_t request_id,
                            std::span<const std::byte> payload) {
  auto& out = open_frame(type, request_id, static_cast<uint32_t>(payload.size()));
  out.insert(out.end(), payload.begin(), payload.end());
}

std::vector<std::byte>& FrameSender::open_frame(wire::FrameType type, uint64_t request_id,
                                                uint32_t bytes) {
  const auto header = wire::encode(
      wire::FrameHeader{.type = type, .payload_bytes = bytes, .request_id = request_id});
  auto& out = tail();
  out.insert(out.end(), header.begin(), header.end());
  return out;
}

void FrameSender::add_data(uint64_t request_id, PieceList& source, uint32_t bytes) {
  open_frame(wire::FrameType::kData, request_id, bytes);
  source_ = &source;
  data_left_ = bytes;
}

void FrameSender::erase_behind(size_t from, size_t bytes) {
  const auto at = behind_.begin() + static_cast<ptrdiff_t>(from);
  behind_.erase(at, at + static_cast<ptrdiff_t>(bytes));
}

Result<FrameSender::State> FrameSender::send(int fd) {
  if (idle()) return State::kIdle;
  std::array<iovec, kMaxPieces> pieces;
  size_t used = 0;
  if (before_sent_ < before_.size()) {
    pieces[used++] = {before_.data() + before_sent_, before_.size() - before_sent_};
  }
  if (data_left_ > 0) {
    const std::span room = std::span(pieces).subspan(used);
    const size_t data_pieces =
        source_ != nullptr ? source_->gather(room, data_left_) : gather_zeros(room, data_left_);
    const bool whole = bytes_of(room.first(data_pieces)) == data_left_;
    used += data_pieces;
    if (whole && !behind_.empty() && used < pieces.size()) {
      pieces[used++] = {behind_.data(), behind_.size()};
    }
  }
  const std::span<const iovec> message(pieces.data(), used);
  const uint64_t asked = bytes_of(message);
  ++calls_;
  SL_ASSIGN(const IoResult moved, send_pieces(fd, message));
  if (moved.kind == IoResult::Kind::kWouldBlock) return State::kFull;
  note_sent(moved.bytes);
  if (moved.bytes < asked) return State::kFull;
  return idle() ? State::kIdle : State::kMore;
}

void FrameSender::note_sent(size_t bytes) noexcept {
  const size_t head = std::min(bytes, before_.size() - before_sent_);
  before_sent_ += head;
  bytes -= head;
  const size_t data = std::min<size_t>(bytes, data_left_);
  data_left_ -= data;
  if (source_ != nullptr) source_->advance(data);
  bytes -= data;
  if (before_sent_ < before_.size() || data_left_ > 0) return;

  // What stood behind the data comes next.
  source_ = nullptr;
  before_.clear();
  if (before_.capacity() > kKeptBytes) before_.shrink_to_fit();
  std::swap(before_, behind_);
  before_sent_ = bytes;
  if (before_sent_ == before_.size()) {
    before_.clear();
    before_sent_ = 0;
  }
}

}  // namespace stagelink::transport
