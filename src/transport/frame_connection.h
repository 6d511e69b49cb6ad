#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
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
    // `payload` and `fds` are valid during the call; take fds by moving them out. A failure closes
    // the connection and is given back in on_closed.
    virtual Status on_frame(FrameConnection& from,
                            const wire::FrameHeader& header,
                            std::span<const std::byte> payload,
                            std::vector<UniqueFd>& fds) = 0;
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
  // kMaxQueuedBytes wait to be sent; peer_lost. fds are duplicated into the kernel on send and stay
  // the caller's only until this returns: pass dup'ed ones as UniqueFd.
  Status send(wire::FrameType type,
              uint64_t request_id,
              std::span<const std::byte> payload,
              std::vector<UniqueFd> fds = {});
  void on_ready(uint32_t epoll_events) override;
  int fd() const noexcept { return fd_.get(); }
  // Nothing waits to be sent.
  bool drained() const noexcept { return queue_.empty(); }

  static constexpr size_t kMaxQueuedBytes = 1 << 20;

 private:
  struct Outgoing {
    std::vector<std::byte> bytes;
    size_t sent = 0;
    std::vector<UniqueFd> fds;
  };
  FrameConnection(Poller& poller, UniqueFd fd, Owner& owner) noexcept;
  Status receive();
  Status deliver();
  Status flush();
  void fail(const Status& why);

  Poller& poller_;
  UniqueFd fd_;
  Owner& owner_;
  std::vector<std::byte> input_;
  std::vector<UniqueFd> input_fds_;
  std::deque<Outgoing> queue_;
  size_t queued_bytes_ = 0;
  bool closed_ = false;
};

}  // namespace stagelink::transport
