#include "memory/pool_allocator.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include <fmt/format.h>

namespace stagelink::memory {
namespace {

constexpr uint64_t align_up(uint64_t value, uint64_t unit) noexcept {
  return (value + unit - 1) & ~(unit - 1);
}

}  // namespace

PoolBuffer& PoolBuffer::operator=(PoolBuffer&& other) noexcept {
  PoolBuffer old(std::move(other));
  std::swap(pool_, old.pool_);
  std::swap(offset_, old.offset_);
  std::swap(bytes_, old.bytes_);
  return *this;
}

PoolBuffer::~PoolBuffer() {
  // Cannot fail: what this object holds was handed out and not given back.
  if (pool_ != nullptr) (void)pool_->free(offset_);
}

uint64_t PoolBuffer::detach() noexcept {
  pool_ = nullptr;
  bytes_ = {};
  return offset_;
}

Result<std::unique_ptr<PoolAllocator>> PoolAllocator::create(std::span<std::byte> memory) {
  const uint64_t base = reinterpret_cast<uintptr_t>(memory.data());
  const uint64_t begin = align_up(base, kGranule);
  const uint64_t end = (base + memory.size()) / kGranule * kGranule;
  if (begin >= end) {
    return Status(
        Reason::kInvalidArgument,
        fmt::format("a pool in {} bytes: no whole {} bytes in it", memory.size(), kGranule));
  }
  return std::unique_ptr<PoolAllocator>(new PoolAllocator(memory, begin, end));
}

PoolAllocator::PoolAllocator(std::span<std::byte> memory, uint64_t begin, uint64_t end)
    : memory_(memory), base_(reinterpret_cast<uintptr_t>(memory.data())), begin_(begin), end_(end) {
  pieces_.emplace(begin, Piece{end - begin, false});
  free_by_size_.emplace(end - begin, begin);
}

Result<PoolBuffer> PoolAllocator::allocate(size_t bytes, const Deadline& deadline,
                                           size_t alignment) {
  SL_ASSIGN(const Request request, check(bytes, alignment));
  MutexLock lock(mutex_);
  if (line_.length() == 0) {
    if (const auto fit = find_fit(request)) return take(*fit, request, bytes);
  }
  WaitLine::Place place(line_);
  do {
    if (!place.is_first()) continue;
    if (const auto fit = find_fit(request)) return take(*fit, request, bytes);
  } while (place.wait_until(mutex_, deadline));
  return Status(
      Reason::kNoSpace,
      fmt::format("{} bytes were asked for; {} of {} are free, {} in the largest piece, "
                  "and {} requests wait",
                  bytes, end_ - begin_ - used_, end_ - begin_, largest_free(), line_.length() - 1));
}

Result<PoolAllocator::Request> PoolAllocator::check(size_t bytes, size_t alignment) const {
  if (bytes == 0) return Status(Reason::kInvalidArgument, "allocating 0 bytes");
  if (!std::has_single_bit(alignment) || alignment > kMaxAlignment) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("an alignment of {}; powers of two up to {} are possible", alignment,
                              kMaxAlignment));
  }
  alignment = std::max(alignment, kGranule);
  const uint64_t first = align_up(begin_, alignment);
  if (first >= end_ || bytes > end_ - first) {
    return Status(
        Reason::kTooLarge,
        fmt::format("{} bytes at an alignment of {} were asked for; the whole pool has {}", bytes,
                    alignment, end_ - begin_));
  }
  return Request{align_up(bytes, kGranule), alignment};
}

std::optional<PoolAllocator::Fit> PoolAllocator::find_fit(const Request& request) const {
  constexpr int kSmallest = 16;  // Looked at before one that fits in any case.
  const auto fit_in = [&](uint64_t size, uint64_t begin) -> std::optional<Fit> {
    const uint64_t aligned = align_up(begin, request.alignment);
    if (aligned - begin > size - request.bytes) return std::nullopt;
    return Fit{begin, aligned};
  };
  auto candidate = free_by_size_.lower_bound({request.bytes, 0});
  for (int i = 0; i < kSmallest && candidate != free_by_size_.end(); ++i, ++candidate) {
    if (const auto fit = fit_in(candidate->first, candidate->second)) return fit;
  }
  if (candidate == free_by_size_.end()) return std::nullopt;
  const auto ample = free_by_size_.lower_bound({request.bytes + request.alignment - kGranule, 0});
  if (ample != free_by_size_.end()) return fit_in(ample->first, ample->second);
  for (; candidate != free_by_size_.end(); ++candidate) {
    if (const auto fit = fit_in(candidate->first, candidate->second)) return fit;
  }
  return std::nullopt;
}

PoolBuffer PoolAllocator::take(const Fit& fit, const Request& request, size_t bytes) {
  const auto piece = pieces_.find(fit.piece_begin);
  const uint64_t piece_end = piece->first + piece->second.bytes;
  free_by_size_.erase({piece->second.bytes, piece->first});
  pieces_.erase(piece);
  if (fit.begin > fit.piece_begin) add_free(fit.piece_begin, fit.begin - fit.piece_begin);
  const uint64_t end = fit.begin + request.bytes;
  if (piece_end > end) add_free(end, piece_end - end);
  pieces_.emplace(fit.begin, Piece{request.bytes, true});
  used_ += request.bytes;
  ++used_pieces_;
  high_water_ = std::max(high_water_, used_);
  const uint64_t offset = fit.begin - base_;
  return PoolBuffer(*this, offset, memory_.subspan(offset, bytes));
}

void PoolAllocator::add_free(uint64_t begin, uint64_t bytes) {
  pieces_.emplace(begin, Piece{bytes, false});
  free_by_size_.emplace(bytes, begin);
}

Status PoolAllocator::free(uint64_t offset) {
  MutexLock lock(mutex_);
  const auto piece = offset < memory_.size() ? pieces_.find(base_ + offset) : pieces_.end();
  if (piece == pieces_.end() || !piece->second.used) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("offset {} is freed, but no piece is handed out there", offset));
  }
  used_ -= piece->second.bytes;
  --used_pieces_;
  piece->second.used = false;
  join_free(piece);
  line_.wake_first();
  return {};
}

void PoolAllocator::join_free(PieceMap::iterator piece) {
  if (const auto behind = std::next(piece); behind != pieces_.end() && !behind->second.used) {
    free_by_size_.erase({behind->second.bytes, behind->first});
    piece->second.bytes += behind->second.bytes;
    pieces_.erase(behind);
  }
  if (piece != pieces_.begin() && !std::prev(piece)->second.used) {
    const auto before = std::prev(piece);
    free_by_size_.erase({before->second.bytes, before->first});
    before->second.bytes += piece->second.bytes;
    pieces_.erase(piece);
    piece = before;
  }
  free_by_size_.emplace(piece->second.bytes, piece->first);
}

uint64_t PoolAllocator::largest_free() const {
  return free_by_size_.empty() ? 0 : free_by_size_.rbegin()->first;
}

PoolAllocator::Usage PoolAllocator::usage() const {
  MutexLock lock(mutex_);
  Usage usage;
  usage.total = end_ - begin_;
  usage.used = used_;
  usage.free = usage.total - used_;
  usage.largest_free = largest_free();
  usage.high_water = high_water_;
  usage.pieces = used_pieces_;
  usage.waiting = line_.length();
  return usage;
}

}  // namespace stagelink::memory
