#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "stagelink/result.h"

// A notification, in a ring or as the payload of kNotify.
//
//   offset  bytes  field
//        0      4  payload_bytes
//        4      2  outcome of the transfer that it follows (wire/reason_code.h)
//        6      2  zero
//        8      n  payload
//
// Over TCP a notification travels as the payload of kNotify, and NotifyAck tells its sender how
// much of the owner's ring is free again. Both sides count notify_ring_bytes() of each
// notification.
//
//   offset  bytes  field
//        0      8  taken: ring bytes of all notifications that were taken, a multiple of 8
namespace stagelink::wire {

inline constexpr size_t kNotifyHeaderBytes = 8;

struct NotifyRecord {
  Reason outcome = Reason::kOk;
  std::span<const std::byte> payload;  // Into the input.
};

std::array<std::byte, kNotifyHeaderBytes> encode_notify_header(Reason outcome,
                                                               uint32_t payload_bytes) noexcept;
// Reads one record from the front of `in`; what stands behind it is not looked at. Errors: corrupt
// (frame).
Result<NotifyRecord> decode_notify(std::span<const std::byte> in);

// What a record with this payload takes of a ring.
constexpr uint64_t notify_ring_bytes(size_t payload_bytes) noexcept {
  return (kNotifyHeaderBytes + uint64_t{payload_bytes} + 7) & ~uint64_t{7};
}

struct NotifyAck {
  uint64_t taken = 0;
  friend bool operator==(const NotifyAck&, const NotifyAck&) = default;
};
inline constexpr size_t kNotifyAckBytes = 8;

std::array<std::byte, kNotifyAckBytes> encode(const NotifyAck& ack) noexcept;
Result<NotifyAck> decode_notify_ack(std::span<const std::byte> in);

}  // namespace stagelink::wire
