#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

// The peer page: one memfd for each connected same-host peer, created by the owner, mapped by both.
// Only that peer can spoil it. Header page with access lanes, then the notification ring.
namespace stagelink::wire {

inline constexpr uint64_t kPeerPageMagic = 0x3165676150655065;
inline constexpr uint32_t kLaneCount = 16;
inline constexpr uint32_t kRingBytes = 32 << 10;  // A power of two.

// While a thread of the peer touches the owner's memory, its lane names the epoch of the region
// table that it has seen (0: nobody inside) and which rows (bit row % 64) it may touch.
struct alignas(64) AccessLane {
  std::atomic<uint64_t> epoch;
  std::atomic<uint64_t> rows_mask;
  std::atomic<uint32_t> wake;  // Futex: bumped when the lane is cleared while the owner waits.
};

// Bytes [head, tail) modulo kRingBytes hold records (wire/notify_record.h), each padded to 8 bytes,
// wrapping around freely. The peer advances tail, the owner head.
struct PeerPage {
  uint64_t magic;
  uint64_t nonce;
  uint16_t version_major;
  uint16_t version_minor;
  uint32_t lane_count;
  uint32_t ring_bytes;
  alignas(64) AccessLane lanes[kLaneCount];
  alignas(64) std::atomic<uint64_t> tail;
  alignas(64) std::atomic<uint64_t> head;
};

inline constexpr size_t kRingOffset = 4096;
inline constexpr size_t kPeerPageBytes = kRingOffset + kRingBytes;
static_assert(sizeof(AccessLane) == 64);
static_assert(sizeof(PeerPage) <= kRingOffset);

// One page for each engine, mapped by all its peers. `armed` tells what a sender must do after it
// has put a message into its ring: it takes the word (leaving 0), wakes the futex if kBellFutex was
// set and writes the eventfd if kBellEvent was.
struct Doorbell {
  std::atomic<uint32_t> armed;  // Also the futex.
};
enum BellFlags : uint32_t { kBellFutex = 1, kBellEvent = 2 };
inline constexpr size_t kDoorbellBytes = 4096;

}  // namespace stagelink::wire
