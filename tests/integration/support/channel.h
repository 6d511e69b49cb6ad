#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "stagelink/engine_options.h"

namespace stagelink::test {

// One end of a pair between a test and its child: small messages in order, each whole.
//
// Thread-safety: send() and receive() may run at the same time, each by one thread.
class Channel {
 public:
  explicit Channel(UniqueFd fd) noexcept : fd_(std::move(fd)) {}
  // Both ends are close-on-exec.
  static std::pair<Channel, UniqueFd> pair();

  // False if the other side has gone.
  bool send(std::span<const std::byte> message);
  bool send(std::string_view text);
  // Nothing if the other side has gone, or at the deadline.
  std::optional<std::vector<std::byte>> receive(Duration timeout = std::chrono::seconds(30));
  std::optional<std::string> receive_text(Duration timeout = std::chrono::seconds(30));
  void close() noexcept { fd_.reset(); }
  int fd() const noexcept { return fd_.get(); }

 private:
  UniqueFd fd_;
};

}  // namespace stagelink::test
