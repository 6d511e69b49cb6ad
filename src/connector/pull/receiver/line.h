#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "connector/pull/messages/messages.h"
#include "connector/zmq/socket.h"

namespace stagelink::pull {

// A way to a sender, over which one thread at a time asks and is answered.
//
// Thread-safety: one call at a time; may move between threads.
class Line {
 public:
  virtual ~Line() = default;

  // Errors: timed_out (it cannot be sent by then), peer_lost.
  virtual Status send(MessageSpan message, const Deadline& deadline) = 0;
  // The next message, which stays until the next call. Nothing: the deadline has passed, `stop_fd`
  // is readable, or it is time to look whether to go on. Errors: peer_lost, corrupt.
  virtual Result<std::optional<MessageSpan>> receive(const Deadline& deadline, int stop_fd) = 0;
  // What to wait for when several lines are waited for.
  virtual zmq::PollItem poll_item() const noexcept = 0;
  virtual bool is_local() const noexcept = 0;
};

// Over the UNIX socket of a sender of this host, asked by the calling thread itself: two system
// calls for question and answer.
class UnixLine final : public Line {
 public:
  // Errors: refused (nobody listens any more), not_found, permission, limit (nofile).
  static Result<std::unique_ptr<Line>> connect(const std::string& path);

  Status send(MessageSpan message, const Deadline& deadline) override;
  Result<std::optional<MessageSpan>> receive(const Deadline& deadline, int stop_fd) override;
  zmq::PollItem poll_item() const noexcept override;
  bool is_local() const noexcept override { return true; }

 private:
  explicit UnixLine(UniqueFd fd);
  const UniqueFd fd_;
  const std::unique_ptr<std::byte[]> buffer_;
  bool has_waited_ = false;  // The last receive brought nothing.
};

// Over ZeroMQ. The messages that a peer of 0.30 understands look the same on the wire: an empty
// frame, then the body.
class ZmqLine final : public Line {
 public:
  static Result<std::unique_ptr<Line>> connect(std::shared_ptr<zmq::Context> context,
                                               const Endpoint& sender);

  Status send(MessageSpan message, const Deadline& deadline) override;
  Result<std::optional<MessageSpan>> receive(const Deadline& deadline, int stop_fd) override;
  zmq::PollItem poll_item() const noexcept override;
  bool is_local() const noexcept override { return false; }

 private:
  explicit ZmqLine(zmq::Dealer dealer) noexcept : dealer_(std::move(dealer)) {}
  zmq::Dealer dealer_;
  Message message_;
};

}  // namespace stagelink::pull
