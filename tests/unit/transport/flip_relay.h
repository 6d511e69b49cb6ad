#pragma once

#include <array>
#include <optional>
#include <utility>

#include <sys/socket.h>

#include "base/unique_fd.h"

namespace stagelink::transport {

// Carries bytes between two sockets and may flip one bit on the way.
class FlipRelay {
 public:
  struct Flip {
    int direction = 0;  // 0: from the first socket to the second.
    uint64_t bit = 0;   // Counted from the first byte that the relay carries that way.
  };

  FlipRelay(UniqueFd first, UniqueFd second, std::optional<Flip> flip = std::nullopt)
      : ends_{std::move(first), std::move(second)}, flip_(flip) {}

  // Carries what has come and fits. The end of one side is the end of the other, once all that came
  // before it is through.
  void step() {
    for (int direction = 0; direction < 2; ++direction) carry(direction);
  }
  uint64_t carried(int direction) const { return ways_[static_cast<size_t>(direction)].carried; }

 private:
  struct Way {
    std::array<std::byte, 4096> bytes{};
    size_t got = 0;
    size_t sent = 0;
    uint64_t carried = 0;
  };

  void carry(int direction) {
    Way& way = ways_[static_cast<size_t>(direction)];
    const int from = ends_[static_cast<size_t>(direction)].get();
    const int to = ends_[static_cast<size_t>(1 - direction)].get();
    if (way.sent == way.got) {
      const ssize_t got = ::recv(from, way.bytes.data(), way.bytes.size(), MSG_DONTWAIT);
      if (got == 0) ::shutdown(to, SHUT_WR);
      if (got <= 0) return;
      way.got = static_cast<size_t>(got);
      way.sent = 0;
      flip(way, direction);
      way.carried += way.got;
    }
    const ssize_t sent =
        ::send(to, way.bytes.data() + way.sent, way.got - way.sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) way.sent += static_cast<size_t>(sent);
    if (sent < 0 && errno != EAGAIN) way.sent = way.got;  // Nobody is there any more.
  }
  void flip(Way& way, int direction) const {
    if (!flip_.has_value() || flip_->direction != direction) return;
    const uint64_t byte = flip_->bit / 8;
    if (byte < way.carried || byte >= way.carried + way.got) return;
    way.bytes[byte - way.carried] ^= std::byte{1} << flip_->bit % 8;
  }

  std::array<UniqueFd, 2> ends_;
  std::array<Way, 2> ways_;
  std::optional<Flip> flip_;
};

}  // namespace stagelink::transport
