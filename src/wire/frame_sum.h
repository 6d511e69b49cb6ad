#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "wire/frame.h"

// Checked connections. Behind the welcome each frame has two sums:
//
//   header   flags: the low 16 bits of XXH3-64 over the header with flags 0, so that a damaged
//   length
//            does not make the receiver wait for bytes that never come
//   trailer  8 bytes behind the payload, not counted in payload_bytes: XXH3-64 over header and
//   payload
//
// A data frame whose payload its sender had to give up (zeros stand for it, and its request ends
// with a failure) carries void_sum() instead. The sums find damage, not forgery.
namespace stagelink::wire {

using RawHeader = std::array<std::byte, kFrameHeaderBytes>;
using Trailer = std::array<std::byte, 8>;

inline constexpr size_t kTrailerBytes = std::tuple_size_v<Trailer>;

// Writes the sum of an encoded header into its flags.
void seal_header(RawHeader& header) noexcept;
// Whether it is there; if so, flags are 0 again and the header can be decoded.
bool open_header(RawHeader& header) noexcept;

// The sum of a frame whose bytes pass by in order.
//
// Thread-safety: none; used by one thread.
class FrameSum {
 public:
  FrameSum();
  FrameSum(const FrameSum&) = delete;
  FrameSum& operator=(const FrameSum&) = delete;
  ~FrameSum();

  // `header` as it stands on the wire, sealed.
  void begin(std::span<const std::byte> header) noexcept;
  void add(std::span<const std::byte> payload) noexcept;
  Trailer trailer() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Of a frame that lies in one piece: sealed header and payload.
Trailer sum_of(std::span<const std::byte> frame) noexcept;
// Of a data frame that was given up. `header`: sealed.
Trailer void_sum(std::span<const std::byte> header) noexcept;

}  // namespace stagelink::wire
