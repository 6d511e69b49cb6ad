#include "cli/bench/limit/socket_server.h"

#include <cerrno>
#include <cstring>
#include <vector>

#include <fmt/format.h>
#include <sys/socket.h>

#include "cli/bench/limit/socket_protocol.h"
#include "cli/bench/limit/vectors.h"

namespace stagelink::cli::bench {

namespace {

// Thread-safety: one thread.
class SocketServer {
 public:
  SocketServer(const TcpEnd& end, std::span<std::byte> memory) : end_(end), memory_(memory) {}

  Status answer(const OrderHead& head) {
    switch (head.order) {
      case SocketOrder::kEcho: return echo(head.count);
      case SocketOrder::kPlain:
        if (!inside(head.offset, head.bytes)) break;
        return end_.send(memory_.subspan(head.offset, head.bytes));
      case SocketOrder::kScattered: return send_scattered(head.count);
    }
    return Status(Reason::kFrame, "plain socket: an order that makes no sense");
  }

 private:
  bool inside(uint64_t offset, uint64_t bytes) const noexcept {
    return bytes <= memory_.size() && offset <= memory_.size() - bytes;
  }

  Status echo(uint32_t count) const {
    for (uint32_t i = 0; i < count; ++i) {
      uint64_t word = 0;
      SL_TRY(end_.receive(std::as_writable_bytes(std::span(&word, 1))));
      SL_TRY(end_.send(std::as_bytes(std::span(&word, 1))));
    }
    return Status();
  }

  Status send_scattered(uint32_t count) {
    if (count > kMostOrderRanges) return Status(Reason::kFrame, "plain socket: too many ranges");
    ranges_.resize(count);
    SL_TRY(end_.receive(std::as_writable_bytes(std::span(ranges_))));
    pieces_.clear();
    for (const OrderRange& range : ranges_) {
      if (!inside(range.offset, range.bytes)) {
        return Status(Reason::kFrame, "plain socket: a range outside of the region");
      }
      pieces_.push_back({memory_.data() + range.offset, range.bytes});
    }
    walk_.begin(pieces_);
    while (!walk_.over()) {
      const std::span<iovec> vectors = walk_.next();
      msghdr message{};
      message.msg_iov = vectors.data();
      message.msg_iovlen = vectors.size();
      const ssize_t moved = ::sendmsg(end_.fd(), &message, MSG_NOSIGNAL);
      if (moved < 0 && errno == EINTR) continue;
      if (moved <= 0) {
        return Status(Reason::kPeerLost,
                      fmt::format("plain socket: sendmsg: {}", std::strerror(errno)));
      }
      walk_.moved(static_cast<size_t>(moved));
    }
    return Status();
  }

  const TcpEnd& end_;
  const std::span<std::byte> memory_;
  std::vector<OrderRange> ranges_;
  std::vector<iovec> pieces_;
  VectorWalk walk_{kVectorsPerCall};
};

}  // namespace

Status serve_socket(const TcpEnd& end, std::span<std::byte> memory) {
  SocketServer server(end, memory);
  for (;;) {
    OrderHead head;
    const Status received = end.receive(std::as_writable_bytes(std::span(&head, 1)));
    if (received.code() == Code::kPeerLost) return Status();
    SL_TRY(received);
    SL_TRY(server.answer(head));
  }
}

}  // namespace stagelink::cli::bench
