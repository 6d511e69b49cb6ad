#pragma once

#include <deque>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "stagelink/result.h"

namespace stagelink::cli::replay {

// JSON objects, one a line, over a stream socket: between the replay's parent and one of its ranks,
// or between the parents of two halves. Every message has a string "event".
//
// Thread-safety: one thread.
class ControlChannel {
 public:
  using Json = nlohmann::json;
  static constexpr size_t kMaxLineBytes = 4 << 20;

  // Makes the socket non-blocking. A line from the other end may have so many bytes.
  explicit ControlChannel(UniqueFd socket, size_t max_line_bytes = kMaxLineBytes);

  int fd() const noexcept { return socket_.get(); }
  bool wants_write() const noexcept { return !out_.empty(); }
  // Queues; written by flush(), and at once as far as the socket takes it. False: the other end
  // has gone.
  bool send(const Json& message);
  bool flush();
  // Reads what is there. False at the end of the stream, once all messages have been taken.
  bool fill();
  // The next whole message. Errors: corrupt (frame): not JSON, no "event", or too long.
  Result<std::optional<Json>> next();
  bool ended() const noexcept { return ended_; }

 private:
  Status too_long() const;

  UniqueFd socket_;
  size_t max_line_bytes_;
  std::string in_;
  size_t in_at_ = 0;
  std::string out_;
  bool ended_ = false;
};

}  // namespace stagelink::cli::replay
