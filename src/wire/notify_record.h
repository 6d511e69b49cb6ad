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

}  // namespace stagelink::wire
