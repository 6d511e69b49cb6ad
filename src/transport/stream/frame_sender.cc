#include "transport/stream/frame_sender.h"

#include <algorithm>
#include <array>
#include <utility>

#include "transport/socket_io.h"

namespace stagelink::transport {
namespace {

// The kernel takes at most 1024 pieces in one call.
constexpr size_t kMaxPieces = 1024;
constexpr size_t kStageBytes = 64 << 10;
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

FrameSender::FrameSender(bool checked) : checks_(checked ? std::make_unique<Checks>() : nullptr) {}

void FrameSender::add_frame(wire::FrameType type, uint64_t request_id,
                            std::span<const std::byte> payload) {
  auto& out = open_frame(type, request_id, static_cast<uint32_t>(payload.size()));
  out.insert(out.end(), payload.begin(), payload.end());
  close_frame();
}

std::vector<std::byte>& FrameSender::open_frame(wire::FrameType type, uint64_t request_id,
                                                uint32_t bytes) {
  auto& out = tail();
  if (checks_ != nullptr) checks_->opened_at = out.size();
  add_header({.type = type, .payload_bytes = bytes, .request_id = request_id});
  return out;
}

void FrameSender::close_frame() {
  if (checks_ == nullptr) return;
  auto& out = tail();
  const auto trailer = wire::sum_of(std::span(out).subspan(checks_->opened_at));
  out.insert(out.end(), trailer.begin(), trailer.end());
}

void FrameSender::add_header(const wire::FrameHeader& header) {
  auto raw = wire::encode(header);
  if (checks_ != nullptr) wire::seal_header(raw);
  auto& out = tail();
  out.insert(out.end(), raw.begin(), raw.end());
  if (checks_ != nullptr && header.type == wire::FrameType::kData) checks_->header = raw;
}

void FrameSender::add_data(uint64_t request_id, PieceList& source, uint32_t bytes) {
  add_header({.type = wire::FrameType::kData, .payload_bytes = bytes, .request_id = request_id});
  if (checks_ != nullptr) {
    checks_->sum.begin(checks_->header);
    checks_->unsummed = bytes;
  }
  source_ = &source;
  data_left_ = bytes;
}

// What comes next of the data. Small pieces are copied together: one piece for the kernel instead
// of hundreds.
size_t FrameSender::gather(std::span<iovec> into, std::span<std::byte> stage) const {
  if (source_ == nullptr) return gather_zeros(into, data_left_);
  if (!source_->shorter_ahead(PieceList::kSmallBytes)) return source_->gather(into, data_left_);
  const size_t size = std::min<uint64_t>(stage.size(), data_left_);
  into[0] = {stage.data(), source_->copy_out(stage.first(size))};
  return 1;
}

void FrameSender::erase_behind(size_t from, size_t bytes) {
  const auto at = behind_.begin() + static_cast<ptrdiff_t>(from);
  behind_.erase(at, at + static_cast<ptrdiff_t>(bytes));
}

Result<FrameSender::State> FrameSender::send(int fd) {
  if (idle()) return State::kIdle;
  std::array<iovec, kMaxPieces> pieces;
  std::array<std::byte, kStageBytes> stage;
  size_t used = 0;
  if (before_sent_ < before_.size()) {
    pieces[used++] = {before_.data() + before_sent_, before_.size() - before_sent_};
  }
  if (data_left_ > 0) {
    const size_t kept = checks_ != nullptr ? 1 : 0;  // For the trailer.
    const std::span room = std::span(pieces).subspan(used, pieces.size() - used - kept);
    const size_t data_pieces = gather(room, stage);
    const bool whole = bytes_of(room.first(data_pieces)) == data_left_;
    used += data_pieces;
    if (checks_ != nullptr) {
      sum_pieces(room.first(data_pieces), whole);
      if (whole) pieces[used++] = {checks_->trailer.data(), checks_->trailer.size()};
    }
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

// `pieces` begin with the first byte that was not sent; some of them may be in the sum already. The
// trailer is needed with the last piece, so that it goes out in the same call.
void FrameSender::sum_pieces(std::span<const iovec> pieces, bool whole) {
  if (source_ == nullptr) {
    checks_->trailer = wire::void_sum(checks_->header);
    return;
  }
  uint64_t summed = data_left_ - checks_->unsummed;
  for (const iovec& piece : pieces) {
    const uint64_t skip = std::min<uint64_t>(summed, piece.iov_len);
    summed -= skip;
    const std::span fresh(static_cast<const std::byte*>(piece.iov_base) + skip,
                          piece.iov_len - skip);
    checks_->sum.add(fresh);
    checks_->unsummed -= fresh.size();
  }
  if (whole) checks_->trailer = checks_->sum.trailer();
}

// The rest of a trailer that was sent in part comes before all else.
size_t FrameSender::note_trailer_sent(size_t bytes) {
  const auto& trailer = checks_->trailer;
  const size_t sent = std::min(bytes, trailer.size());
  behind_.insert(behind_.begin(), trailer.begin() + static_cast<ptrdiff_t>(sent), trailer.end());
  return sent;
}

void FrameSender::note_sent(size_t bytes) {
  const size_t head = std::min(bytes, before_.size() - before_sent_);
  before_sent_ += head;
  bytes -= head;
  const bool in_data = data_left_ > 0;
  const size_t data = std::min<size_t>(bytes, data_left_);
  data_left_ -= data;
  if (source_ != nullptr) source_->advance(data);
  bytes -= data;
  if (before_sent_ < before_.size() || data_left_ > 0) return;
  if (in_data && checks_ != nullptr) bytes -= note_trailer_sent(bytes);

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
