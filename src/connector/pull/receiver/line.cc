#include "connector/pull/receiver/line.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

namespace stagelink::pull {
namespace {

// An answer that comes at once is received without poll(2), which looks up so often. Other waits
// are polled for.
constexpr Duration kLineTick = std::chrono::milliseconds(50);
constexpr Duration kLinePollTick = std::chrono::milliseconds(100);
constexpr int kLineBytes = 1 << 20;  // Asked for; the kernel may give less.

Status line_lost(int error) {
  return Status(Reason::kPeerLost,
                fmt::format("the sender has ended the connection: {}",
                            error == 0 ? "it was closed" : std::strerror(error)));
}

Reason connect_reason(int error) noexcept {
  switch (error) {
    case ECONNREFUSED: return Reason::kRefused;
    case ENOENT: return Reason::kNotFound;
    case EACCES:
    case EPERM: return Reason::kPermission;
    default: return Reason::kSystem;
  }
}

}  // namespace

// --- UnixLine ---

Result<std::unique_ptr<Line>> UnixLine::connect(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) return Status(Reason::kNofile, "no descriptor to ask a sender");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return Status(Reason::kFrame, "the path of a sender's socket is too long");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const timeval tick{0, std::chrono::duration_cast<std::chrono::microseconds>(kLineTick).count()};
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &tick, sizeof tick);
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &tick, sizeof tick);
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &kLineBytes, sizeof kLineBytes);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const int error = errno;
    return Status(connect_reason(error), fmt::format("{}: {}", path, std::strerror(error)));
  }
  return std::unique_ptr<Line>(new UnixLine(std::move(fd)));
}

UnixLine::UnixLine(UniqueFd fd)
    : fd_(std::move(fd)),
      buffer_(std::make_unique_for_overwrite<std::byte[]>(kMaxMessageBytes + 1)) {}

Status UnixLine::send(MessageSpan message, const Deadline& deadline) {
  const int flags = MSG_NOSIGNAL | (deadline.passed() ? MSG_DONTWAIT : 0);
  while (::send(fd_.get(), message.data(), message.size(), flags) < 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return line_lost(errno);
    if (deadline.passed()) return Status(Reason::kTimedOut, "the sender does not read");
  }
  return {};
}

Result<std::optional<MessageSpan>> UnixLine::receive(const Deadline& deadline, int stop_fd) {
  int flags = 0;
  if (has_waited_ || deadline.left() < kLineTick) {
    const Deadline tick = Deadline::earlier(deadline, Deadline::in(kLinePollTick));
    std::array<pollfd, 2> fds = {pollfd{fd_.get(), POLLIN, 0}, pollfd{stop_fd, POLLIN, 0}};
    if (::poll(fds.data(), fds.size(), tick.left_ms()) < 0 && errno != EINTR) {
      return line_lost(errno);
    }
    flags = MSG_DONTWAIT;
  }
  const ssize_t got = ::recv(fd_.get(), buffer_.get(), kMaxMessageBytes + 1, flags);
  has_waited_ = got < 0;
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::optional<MessageSpan>();
  if (got <= 0) return line_lost(got == 0 ? 0 : errno);
  if (static_cast<size_t>(got) > kMaxMessageBytes) {
    return Status(Reason::kFrame, "the sender's answer is too long");
  }
  return std::optional(MessageSpan(buffer_.get(), static_cast<size_t>(got)));
}

zmq::PollItem UnixLine::poll_item() const noexcept { return {.fd = fd_.get(), .want_read = true}; }

// --- ZmqLine ---

Result<std::unique_ptr<Line>> ZmqLine::connect(std::shared_ptr<zmq::Context> context,
                                               const Endpoint& sender) {
  SL_ASSIGN(zmq::Dealer dealer, zmq::Dealer::connect(std::move(context), sender));
  return std::unique_ptr<Line>(new ZmqLine(std::move(dealer)));
}

Status ZmqLine::send(MessageSpan message, const Deadline& deadline) {
  const std::array<zmq::FrameSpan, 2> frames = {zmq::FrameSpan(), message};
  return dealer_.send(frames, deadline);
}

Result<std::optional<MessageSpan>> ZmqLine::receive(const Deadline& deadline, int stop_fd) {
  const Deadline tick = Deadline::earlier(deadline, Deadline::in(kLinePollTick));
  SL_ASSIGN(auto frames, dealer_.receive(tick, stop_fd));
  if (!frames.has_value()) return std::optional<MessageSpan>();
  message_ = std::move(frames->back());
  if (message_.size() > kMaxMessageBytes) {
    return Status(Reason::kFrame, "the sender's answer is too long");
  }
  return std::optional(MessageSpan(message_));
}

zmq::PollItem ZmqLine::poll_item() const noexcept {
  return {.socket = &dealer_, .want_read = true};
}

}  // namespace stagelink::pull
