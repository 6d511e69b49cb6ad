#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "stagelink/result.h"

// Every message on a socket is a frame: this header, then payload_bytes of payload.
//
//   offset  bytes  field
//        0      4  magic "SLK1" (0x314b4c53)
//        4      2  type
//        6      2  flags (0)
//        8      4  payload_bytes, bounded by type
//       12      4  fd_count: descriptors that travel with the first byte (UNIX sockets only)
//       16      8  request_id, chosen by the sender of a request and echoed in answers
//       24
namespace stagelink::wire {

enum class FrameType : uint16_t {
  kHello = 1,    // -> Hello
  kWelcome = 2,  // <- Welcome
  kRefuse = 3,   // <- Outcome: the connection is refused and closed
  kPing = 4,     // either way, empty
  kPong = 5,
  kGetRegion = 6,   // -> RegionRef: ask for the memory of a shareable region
  kRegion = 7,      // <- Outcome, with one fd if ok
  kRead = 8,        // -> BatchHeader: send me these ranges
  kWrite = 9,       // -> BatchHeader: I shall send these ranges as kData
  kData = 10,       // raw bytes of the request's ranges, in order; at most kMaxDataBytes a frame
  kDone = 11,       // <- Outcome: the request is over
  kCancel = 12,     // -> empty: stop serving the request; answered by kDone
  kNotify = 13,     // -> Notify record
  kBye = 14,        // either way, empty: closing in good order
  kNotifyAck = 15,  // <- NotifyAck: notifications that were taken
  kChallenge = 16,  // <- Challenge: the owner knows the secret; prove that you do (wire/auth.h)
  kProof = 17,      // -> Proof
  kStaged = 18,     // Like kData, but the bytes lie in the staging area: how many (wire/staged.h)
  kStagedAck = 19,  // either way: how many of them were taken
};

struct FrameHeader {
  FrameType type = FrameType::kPing;
  uint16_t flags = 0;
  uint32_t payload_bytes = 0;
  uint32_t fd_count = 0;
  uint64_t request_id = 0;
};

inline constexpr size_t kFrameHeaderBytes = 24;
inline constexpr uint32_t kFrameMagic = 0x314b4c53;
inline constexpr uint32_t kMaxControlBytes = 64 << 10;  // Of every payload but batches and data.
inline constexpr uint32_t kMaxDataBytes = 1 << 20;
inline constexpr uint32_t kMaxBatchBytes = 32 << 20;  // kRead, kWrite: about a million ranges.
inline constexpr uint32_t kMaxFds = 4;
inline constexpr uint32_t kChallengeBytes = 64;
inline constexpr uint32_t kProofBytes = 32;

std::array<std::byte, kFrameHeaderBytes> encode(const FrameHeader& header) noexcept;
// Errors: corrupt (frame) names the field: magic, type, flags, payload_bytes beyond the bound of
// the type, fd_count.
Result<FrameHeader> decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> in);
uint32_t max_payload_bytes(FrameType type) noexcept;
// kMaxFds for the frames of a handshake and for kRegion, else 0.
uint32_t max_fds(FrameType type) noexcept;
const char* frame_name(FrameType type) noexcept;

}  // namespace stagelink::wire
