#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "stagelink/result.h"
#include "transport/stream/piece_list.h"
#include "wire/frame.h"
#include "wire/frame_sum.h"

namespace stagelink::transport {

// Takes frames off one socket. Payloads of data frames go straight into memory, small pieces by way
// of a buffer, or are thrown away; others are collected and handed over whole. The header of the
// next frame is received together with the end of the one before.
//
// On a checked connection nothing is handed over before its sum was found right, but for the bytes
// of a data frame: those are in place by then, and the call that tells of the last of them waits
// for it.
//
// Thread-safety: none; used by one thread.
class FrameReceiver {
 public:
  enum class State : uint8_t { kMore, kEmpty, kEnd, kEndInsideFrame };
  // Where a payload goes: collected, into `pieces`, or (kData with null pieces) nowhere.
  struct Target {
    bool collect = true;
    PieceList* pieces = nullptr;
  };

  class Handler {
   public:
    // Checks the header and says where its payload goes. `pieces` must have room for it.
    virtual Result<Target> on_header(const wire::FrameHeader& header) = 0;
    // A collected frame is complete.
    virtual Status on_payload(const wire::FrameHeader& header,
                              std::span<const std::byte> payload) = 0;
    // `bytes` more of a data frame have arrived, in place or thrown away.
    virtual Status on_data(const wire::FrameHeader& header, size_t bytes) = 0;

   protected:
    ~Handler() = default;
  };

  explicit FrameReceiver(bool checked);

  // One system call, then calls of the handler; a failure of the handler is returned. Empty: wait
  // for the socket. Errors besides: as receive_pieces(), and corrupt (frame, checksum);
  // not_registered means that the memory of data_target() cannot be written.
  Result<State> receive(int fd, Handler& handler);

  // Where the payload under way goes; null if nowhere or collected.
  const PieceList* data_target() const noexcept { return target_.pieces; }
  // The memory is not touched any more; the rest of the frame is thrown away.
  void drop_data() noexcept { target_.pieces = nullptr; }

  // After corrupt (checksum): the frame that is damaged, if its header is not.
  const std::optional<wire::FrameHeader>& damaged() const noexcept { return damaged_; }

  uint64_t calls() const noexcept { return calls_; }
  uint64_t data_bytes() const noexcept { return data_bytes_; }

 private:
  // Of a checked connection.
  struct Checks {
    wire::RawHeader header{};  // As it came.
    wire::FrameSum sum;
    wire::Trailer trailer{};
    size_t trailer_got = 0;
    size_t untold = 0;  // Bytes of a data frame that the handler has not been told of.
  };

  Status take(size_t bytes, std::span<const iovec> pieces, Handler& handler);
  Status take_payload(size_t bytes, std::span<const iovec> pieces, Handler& handler);
  size_t take_trailer(size_t bytes) noexcept;
  Status open_header();
  Status check_sum(Handler& handler);
  Status begin_frame(Handler& handler);
  Status end_payload(Handler& handler);
  size_t prepare(std::span<iovec> into, std::span<std::byte> sink);

  std::array<std::byte, wire::kFrameHeaderBytes> raw_header_{};
  size_t header_got_ = 0;
  wire::FrameHeader header_;
  bool in_payload_ = false;
  uint32_t payload_left_ = 0;
  Target target_;
  bool staged_ = false;  // The next bytes are copied to where they belong: see shorter_ahead().
  std::vector<std::byte> collected_;
  size_t collected_got_ = 0;
  uint64_t calls_ = 0;
  uint64_t data_bytes_ = 0;
  std::unique_ptr<Checks> checks_;  // Null: frames carry no sums.
  std::optional<wire::FrameHeader> damaged_;
};

}  // namespace stagelink::transport
