#include "connector/serializer/encode_plan.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "connector/serializer/payload_sum.h"
#include "memory/copy_kernel.h"

namespace stagelink::serializer {
namespace {

constexpr uint64_t kMaxLength = UINT32_MAX;

const memory::CopyKernel& plan_kernel() noexcept {
  static const memory::CopyKernel kernel = memory::pick_copy_kernel(0);
  return kernel;
}

uint64_t aligned(uint64_t offset) noexcept {
  return (offset + kArrayAlign - 1) / kArrayAlign * kArrayAlign;
}

Status check_length(const char* what, uint64_t length) {
  if (length <= kMaxLength) return {};
  return Status(Reason::kTooLarge,
                fmt::format("{} of {} bytes; this form takes at most {}: use wire `fast`", what,
                            length, kMaxLength));
}

template <typename T>
void put(std::vector<std::byte>& out, T value) {
  const size_t at = out.size();
  out.resize(at + sizeof(T));
  std::memcpy(out.data() + at, &value, sizeof(T));
}

void put(std::vector<std::byte>& out, std::string_view text) {
  const auto raw = std::as_bytes(std::span(text.data(), text.size()));
  out.insert(out.end(), raw.begin(), raw.end());
}

std::string_view marker_of(ArrayKind kind) noexcept {
  switch (kind) {
    case ArrayKind::kTensor: return "__tensor__";
    case ArrayKind::kNdarray: return "__ndarray__";
    case ArrayKind::kImage: return "__pil_image__";
  }
  return {};
}

}  // namespace

Status EncodePlan::write(std::span<std::byte> out) const {
  return write(std::span<const std::span<std::byte>>(&out, 1));
}

Status EncodePlan::write(std::span<const std::span<std::byte>> pieces) const {
  uint64_t room = 0;
  for (const auto piece : pieces) room += piece.size();
  if (room != size_) {
    return Status(Reason::kOutOfBounds,
                  fmt::format("room for {} bytes, the payload has {}", room, size_));
  }
  PieceWriter out(pieces, plan_kernel());
  const std::span<const std::byte> head(head_);
  size_t at = 0;
  uint64_t written = head.size();
  for (const Insert& insert : inserts_) {
    out.append(head.subspan(at, insert.at - at));
    insert.source.copy_to(out);
    at = insert.at;
    written += insert.source.bytes();
  }
  out.append(head.subspan(at));
  for (const ArraySource& section : sections_) {
    const uint64_t begin = aligned(written);
    out.zeros(begin - written);
    section.copy_to(out);
    written = begin + section.bytes();
  }
  memory::copy_fence();
  if (sum_) write_sum(pieces);
  return {};
}

void EncodePlan::write_sum(std::span<const std::span<std::byte>> pieces) {
  const std::vector<std::span<const std::byte>> written(pieces.begin(), pieces.end());
  const uint64_t sum = sum_of_frame(written);
  std::array<std::byte, sizeof sum> raw;
  std::memcpy(raw.data(), &sum, sizeof sum);
  uint64_t at = 0;
  for (const auto piece : pieces) {
    for (uint64_t i = std::max<uint64_t>(at, kSumAt); i < at + piece.size() && i < kPrefixBytes;
         ++i) {
      piece[i - at] = raw[i - kSumAt];
    }
    at += piece.size();
  }
}

PlanBuilder::PlanBuilder(Wire wire, bool sum) {
  plan_.wire_ = wire;
  plan_.sum_ = sum && wire == Wire::kFast;
  if (wire == Wire::kFast) head_.raw(std::array<std::byte, kPrefixBytes>{});
}

void PlanBuilder::time(int64_t seconds, uint32_t nanoseconds) {
  // The three widths of MessagePack's timestamp, all big-endian.
  std::array<std::byte, 12> raw;
  const auto big_endian = [&raw](size_t at, uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) {
      raw[at + i] = static_cast<std::byte>(value >> (8 * (bytes - 1 - i)));
    }
  };
  size_t bytes = 0;
  if (seconds < 0 || seconds >= int64_t{1} << 34) {
    bytes = 12;
    big_endian(0, nanoseconds, 4);
    big_endian(4, static_cast<uint64_t>(seconds), 8);
  } else if (nanoseconds != 0 || seconds > UINT32_MAX) {
    bytes = 8;
    big_endian(0, uint64_t{nanoseconds} << 34 | static_cast<uint64_t>(seconds), 8);
  } else {
    bytes = 4;
    big_endian(0, static_cast<uint64_t>(seconds), 4);
  }
  head_.extension(kExtTime, std::span(raw).first(bytes));
}

Status PlanBuilder::text(std::string_view value) {
  SL_TRY(check_length("a text", value.size()));
  head_.text_head(value.size());
  insert(std::as_bytes(std::span(value.data(), value.size())));
  return {};
}

Status PlanBuilder::bytes(std::span<const std::byte> value) {
  if (plan_.wire_ == Wire::kFast && value.size() >= kInsertBytes) {
    std::array<std::byte, 8> length;
    const uint64_t size = value.size();
    std::memcpy(length.data(), &size, sizeof size);
    head_.extension(kExtBytes, length);
    plan_.sections_.push_back(ArraySource::dense(value));
    return {};
  }
  SL_TRY(check_length("a byte string", value.size()));
  head_.bytes_head(value.size());
  insert(value);
  return {};
}

void PlanBuilder::insert(std::span<const std::byte> value) {
  if (value.size() < kInsertBytes) return head_.raw(value);
  plan_.inserts_.push_back({head_.size(), ArraySource::dense(value)});
}

Status PlanBuilder::array(const ArrayPart& part) {
  if (part.dtype.size() > UINT8_MAX || part.mode.size() > UINT8_MAX ||
      part.shape.size() > kMaxRank) {
    return Status(Reason::kTooLarge,
                  fmt::format("an array of {} axes, the limit is {}", part.shape.size(), kMaxRank));
  }
  if (plan_.wire_ == Wire::kCompat) return array_in_map(part);
  array_in_section(part);
  return {};
}

Status PlanBuilder::array_in_map(const ArrayPart& part) {
  SL_TRY(check_length("an array", part.source.bytes()));
  head_.map_head(4, 4);
  head_.text(marker_of(part.kind));
  head_.boolean(true);
  const bool image = part.kind == ArrayKind::kImage;
  head_.text(image ? "mode" : "dtype");
  head_.text(image ? part.mode : part.dtype);
  head_.text("shape");
  head_.list_head(part.shape.size());
  for (const int64_t extent : part.shape) head_.integer(extent);
  head_.text("data");
  head_.bytes_head(part.source.bytes());
  if (part.source.is_dense()) {
    insert(part.source.dense_bytes());
  } else {
    plan_.inserts_.push_back({head_.size(), part.source});
  }
  return {};
}

void PlanBuilder::array_in_section(const ArrayPart& part) {
  std::vector<std::byte> raw;
  put(raw, static_cast<uint8_t>(part.kind));
  put(raw, static_cast<uint8_t>(part.shape.size()));
  put(raw, static_cast<uint8_t>(part.dtype.size()));
  put(raw, static_cast<uint8_t>(part.mode.size()));
  put(raw, part.dtype);
  put(raw, part.mode);
  for (const int64_t extent : part.shape) put(raw, static_cast<uint64_t>(extent));
  head_.extension(kExtArray, raw);
  plan_.sections_.push_back(part.source);
}

Status PlanBuilder::list(uint64_t count, ListKind kind) {
  if (count > kMaxLength) {
    return Status(Reason::kTooLarge, fmt::format("a list of {} entries", count));
  }
  if (plan_.wire_ == Wire::kFast && kind != ListKind::kList) {
    const auto code = static_cast<std::byte>(kind);
    head_.extension(kExtListKind, {&code, 1});
  }
  head_.list_head(count);
  return {};
}

Status PlanBuilder::map(uint64_t count, uint64_t widest) {
  if (widest > kMaxLength || count > widest) {
    return Status(Reason::kTooLarge, fmt::format("a map of {} entries", count));
  }
  head_.map_head(count, widest);
  return {};
}

Result<EncodePlan> PlanBuilder::finish() && {
  uint64_t size = head_.size();
  for (const auto& insert : plan_.inserts_) size += insert.source.bytes();
  if (plan_.wire_ == Wire::kFast) {
    const uint64_t skeleton = size - kPrefixBytes;
    SL_TRY(check_length("a skeleton", skeleton));
    for (const ArraySource& section : plan_.sections_) size = aligned(size) + section.bytes();
    std::array<std::byte, kPrefixBytes> prefix{};
    prefix[0] = std::byte{kFastByte};
    prefix[1] = std::byte{kFastVersion};
    prefix[2] = std::byte{plan_.sum_ ? kFlagSum : uint8_t{0}};
    const auto narrow = static_cast<uint32_t>(skeleton);
    std::memcpy(prefix.data() + 4, &narrow, sizeof narrow);
    std::memcpy(prefix.data() + 8, &size, sizeof size);
    std::memcpy(head_.written().data(), prefix.data(), prefix.size());
  }
  plan_.size_ = size;
  plan_.head_ = head_.take();
  return std::move(plan_);
}

}  // namespace stagelink::serializer
