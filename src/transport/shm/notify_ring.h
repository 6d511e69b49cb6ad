#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stagelink/result.h"
#include "stagelink/status.h"
#include "wire/peer_page_layout.h"

// The notification ring of one peer page: one producer (the peer), one consumer (the owner).
//
// Invariants: tail - head <= kRingBytes; both only grow and are multiples of 8; bytes [head, tail)
// hold whole records. Each side trusts its own counter and checks the other's.
namespace stagelink::transport {

// Largest payload that any ring takes: a quarter of it, so that a few fit.
inline constexpr uint32_t kMaxNotifyBytes = wire::kRingBytes / 4;

// Thread-safety: one thread at a time.
class NotifyProducer {
 public:
  explicit NotifyProducer(wire::PeerPage& page) noexcept;
  // False if the ring is full: nothing was written.
  bool push(Reason outcome, std::span<const std::byte> payload) noexcept;

 private:
  wire::PeerPage& page_;
  uint64_t tail_;
};

struct RingMessage {
  Reason outcome = Reason::kOk;
  std::vector<std::byte> payload;
};

// Thread-safety: one thread at a time.
class NotifyConsumer {
 public:
  explicit NotifyConsumer(wire::PeerPage& page) noexcept;
  bool empty() const noexcept;
  // Ring bytes of all messages that were popped.
  uint64_t taken() const noexcept { return head_; }
  // Appends up to `max` messages. Errors: corrupt (frame) if the peer has spoilt the ring; it is
  // not to be read again.
  Status pop(size_t max, std::vector<RingMessage>& out);

 private:
  wire::PeerPage& page_;
  uint64_t head_;
};

}  // namespace stagelink::transport
