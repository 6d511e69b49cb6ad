#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "stagelink/result.h"
#include "transport/stream/piece_list.h"
#include "wire/frame.h"
#include "wire/frame_sum.h"

namespace stagelink::transport {

// What is still to be sent on one socket: small frames, and at most one data frame whose payload is
// taken straight from memory. Frames added behind a data frame go out with its end in one call.
//
// On a checked connection each frame gets its sums (wire/frame_sum.h). Those of a data frame are
// made out of memory just before it is sent: bytes that change in between arrive as damaged.
//
// Memory that was unmapped under its registration is a failed request where the kernel meets it
// first. Where this process does, it ends the process: with sums, and with pieces that are small.
//
// Thread-safety: none; used by one thread.
class FrameSender {
 public:
  enum class State : uint8_t { kIdle, kMore, kFull };

  explicit FrameSender(bool checked);

  void add_frame(wire::FrameType type, uint64_t request_id, std::span<const std::byte> payload);
  // Adds the header of a frame whose payload the caller appends to the answer at once, and then
  // calls close_frame().
  std::vector<std::byte>& open_frame(wire::FrameType type, uint64_t request_id, uint32_t bytes);
  void close_frame();
  // Starts a data frame with the next `bytes` of `source`, which must stay in place until
  // data_under_way() is false or drop_data() is called. Only while no data is under way.
  void add_data(uint64_t request_id, PieceList& source, uint32_t bytes);
  bool data_under_way() const noexcept { return data_left_ > 0; }
  const PieceList* data_source() const noexcept { return source_; }
  // The memory is not touched any more; what the frame still owes is sent as zeros.
  void drop_data() noexcept { source_ = nullptr; }

  // Small frames that wait behind the data under way, and taking back the last ones of them.
  size_t behind_bytes() const noexcept { return behind_.size(); }
  void erase_behind(size_t from, size_t bytes);

  // One system call. Full: wait for the socket. Errors: as send_pieces(); not_registered means
  // that the memory of the data under way cannot be read.
  Result<State> send(int fd);
  bool idle() const noexcept { return queued_bytes() == 0 && !data_under_way(); }
  // Of small frames.
  size_t queued_bytes() const noexcept { return before_.size() - before_sent_ + behind_.size(); }
  uint64_t calls() const noexcept { return calls_; }

 private:
  // Of a checked connection.
  struct Checks {
    size_t opened_at = 0;      // Where the open frame begins in tail().
    wire::RawHeader header{};  // Of the data frame under way,
    wire::FrameSum sum;        // its sum so far,
    uint64_t unsummed = 0;     // the bytes at its end that are not in it yet,
    wire::Trailer trailer{};   // and what it ends in, known with its last piece.
  };

  void add_header(const wire::FrameHeader& header);
  size_t gather(std::span<iovec> into, std::span<std::byte> stage) const;
  void sum_pieces(std::span<const iovec> pieces, bool whole);
  size_t note_trailer_sent(size_t bytes);
  std::vector<std::byte>& tail() noexcept { return data_under_way() ? behind_ : before_; }
  void note_sent(size_t bytes);

  std::vector<std::byte> before_;  // Frames before the data under way,
  size_t before_sent_ = 0;
  uint64_t data_left_ = 0;         // what its frame still owes,
  PieceList* source_ = nullptr;    // from here (null: zeros),
  std::vector<std::byte> behind_;  // and frames behind it.
  uint64_t calls_ = 0;
  std::unique_ptr<Checks> checks_;  // Null: frames carry no sums.
};

}  // namespace stagelink::transport
