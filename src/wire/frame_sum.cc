#include "wire/frame_sum.h"

#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace stagelink::wire {
namespace {

constexpr size_t kFlagsOffset = 6;
constexpr uint64_t kVoidSeed = 0x64696f76;  // "void"

Trailer as_trailer(uint64_t sum) noexcept {
  Trailer trailer;
  std::memcpy(trailer.data(), &sum, sizeof sum);
  return trailer;
}

uint16_t get_flags(const RawHeader& header) noexcept {
  uint16_t flags = 0;
  std::memcpy(&flags, header.data() + kFlagsOffset, sizeof flags);
  return flags;
}

void set_flags(RawHeader& header, uint16_t flags) noexcept {
  std::memcpy(header.data() + kFlagsOffset, &flags, sizeof flags);
}

uint16_t header_sum(const RawHeader& header) noexcept {
  return static_cast<uint16_t>(XXH3_64bits(header.data(), header.size()));
}

}  // namespace

struct FrameSum::State {
  XXH3_state_t xxh;  // Aligned to 64 bytes.
};

void seal_header(RawHeader& header) noexcept {
  set_flags(header, 0);
  set_flags(header, header_sum(header));
}

bool open_header(RawHeader& header) noexcept {
  const uint16_t told = get_flags(header);
  set_flags(header, 0);
  if (header_sum(header) == told) return true;
  set_flags(header, told);
  return false;
}

FrameSum::FrameSum() : state_(std::make_unique<State>()) { XXH3_INITSTATE(&state_->xxh); }
FrameSum::~FrameSum() = default;

void FrameSum::begin(std::span<const std::byte> header) noexcept {
  XXH3_64bits_reset(&state_->xxh);
  add(header);
}

void FrameSum::add(std::span<const std::byte> payload) noexcept {
  XXH3_64bits_update(&state_->xxh, payload.data(), payload.size());
}

Trailer FrameSum::trailer() const noexcept { return as_trailer(XXH3_64bits_digest(&state_->xxh)); }

Trailer sum_of(std::span<const std::byte> frame) noexcept {
  return as_trailer(XXH3_64bits(frame.data(), frame.size()));
}

Trailer void_sum(std::span<const std::byte> header) noexcept {
  return as_trailer(XXH3_64bits_withSeed(header.data(), header.size(), kVoidSeed));
}

}  // namespace stagelink::wire
