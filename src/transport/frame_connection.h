#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/unique_fd.h"
#include "stagelink/result.h"
#include "transport/poller.h"
#include "wire/frame.h"

namespace stagelink::transport {

// A connected, non-blocking stream socket that speaks frames of bounded size, with fds on UNIX
// sockets. For control traffic; bulk data has transport/stream.
//
// Thread-safety: used by the poller's thread only.
class FrameConnection final : public PollHandler {
 public:
  class Owner {
   public:
    // `payload` and `fds` are valid during the call; take fds by moving them out, the others are
    // closed. A failure closes the connection and is given back in on_closed. The owner may destroy
    // the connection inside it.
    virtual Status on_frame(FrameConnection& from, const wire::FrameHeader& header,
                            std::span<const std::byte> payload, std::vector<UniqueFd>& fds) = 0;
    // The last call, exactly once, unless the owner destroys the connection first. Ok: the other
    // side closed between frames. The owner may destroy the connection inside it.
    virtual void on_closed(FrameConnection& connection, const Status& why) = 0;

   protected:
    ~Owner() = default;
  };

  static Result<std::unique_ptr<FrameConnection>> create(Poller& poller, UniqueFd fd, Owner& owner);
  FrameConnection(const FrameConnection&) = delete;
  FrameConnection& operator=(const FrameConnection&) = delete;
  ~FrameConnection();

  // Queues one frame and sends what the socket takes. Errors: busy (ring_full) when more than
  // kMaxQueuedBytes wait to be sent; limit (too_large, nofile); peer_lost. Never calls the owner: a
  // broken connection tells it from the loop. fds are closed here once the kernel has taken them.
  Status send(wire::FrameType type, uint64_t request_id, std::span<const std::byte> payload,
              std::vector<UniqueFd> fds = {});
  // From here on, frames of both directions carry sums (wire/frame_sum.h). Called between the
  // welcome and the frame behind it. One that is damaged ends the connection: corrupt (checksum).
  void check_frames() noexcept { checked_ = true; }
  void on_ready(uint32_t epoll_events) override;
  int fd() const noexcept { return fd_.get(); }
  // Nothing waits to be sent.
  bool drained() const noexcept { return queue_.empty(); }

  static constexpr size_t kMaxQueuedBytes = 1 << 20;
  // At most this many bytes are received in one on_ready(), so that a busy peer does not starve
  // others.
  static constexpr size_t kReceiveBytes = 64 << 10;

 private:
  struct Outgoing {
    std::vector<std::byte> bytes;
    size_t sent = 0;
    std::vector<UniqueFd> fds;
  };
  enum class Step : uint8_t { kGoOn, kGone };  // Gone: `this` must not be touched any more.

  FrameConnection(Poller& poller, UniqueFd fd, Owner& owner) noexcept;
  Step receive();
  Step deliver_frames();
  std::vector<std::byte> frame_of(const wire::FrameHeader& header,
                                  std::span<const std::byte> payload) const;
  Result<wire::FrameHeader> open_header(std::span<const std::byte> rest) const;
  Status check_sum(const wire::FrameHeader& header, std::span<const std::byte> frame) const;
  size_t frame_bytes(const wire::FrameHeader& header) const noexcept;
  Step deliver(const wire::FrameHeader& header, std::span<const std::byte> payload);
  Step check_waiting_fds(const std::optional<wire::FrameHeader>& unfinished);
  Status flush();
  void watch_for_room(bool wanted);
  void break_off(const Status& why) noexcept;
  Step fail(const Status& why);

  Poller& poller_;
  UniqueFd fd_;
  Owner& owner_;
  std::vector<std::byte> input_;     // Unfinished frames.
  std::vector<UniqueFd> input_fds_;  // In the order of the frames that they belong to.
  std::deque<Outgoing> queue_;
  size_t queued_bytes_ = 0;
  bool watches_for_room_ = false;
  bool checked_ = false;
  bool closed_ = false;
  Status broken_;              // Why sending is over; told to the owner by the loop.
  bool* destroyed_ = nullptr;  // Set by the destructor while the owner is being called.
};

}  // namespace stagelink::transport
