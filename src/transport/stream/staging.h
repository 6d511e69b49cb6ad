#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "transport/stream/staging_area.h"

namespace stagelink::transport {

class FrameSender;
class PieceList;

// One end's use of a staging area: what it sends goes into its half, what it receives comes out of
// the other, in order and around the end. A frame says how many bytes were put there, another how
// many were taken. When a half is full, bytes go through the socket instead: nobody ever waits for
// room.
//
// Thread-safety: none; used by one thread.
class Staging {
 public:
  enum class End : uint8_t { kOwner, kInitiator };
  Staging(StagingArea area, End end) noexcept;

  // Copies the next bytes of `source`, at most `max_bytes` and 64 KiB, and announces them
  // with a frame of `request_id`. 0, and nothing has happened: there is no room, or memory for it.
  size_t send(FrameSender& sender, uint64_t request_id, PieceList& source, uint64_t max_bytes);
  // The other end has taken `bytes`. False: there were not as many.
  bool acknowledge(uint32_t bytes) noexcept;

  // Takes the next bytes that the other end has put, into `target` or (null) nowhere, and announces
  // that now and then. At most kHalfBytes.
  void receive(FrameSender& sender, PieceList* target, uint32_t bytes);

 private:
  bool has_memory();

  StagingArea area_;
  std::span<std::byte> out_;
  std::span<std::byte> in_;
  enum class Memory : uint8_t { kUnknown, kThere, kNone } memory_ = Memory::kUnknown;
  size_t put_at_ = 0;    // The next byte of out_,
  size_t put_ = 0;       // and how many before it the other end has still to take.
  size_t taken_at_ = 0;  // The next byte of in_,
  uint32_t taken_ = 0;   // and how many before it are to be announced.
};

}  // namespace stagelink::transport
