#include "integration/support/channel.h"

#include <cerrno>
#include <stdexcept>

#include <poll.h>
#include <sys/socket.h>

#include "base/deadline.h"

namespace stagelink::test {
namespace {

constexpr size_t kMaxMessageBytes = 192 << 10;

}  // namespace

std::pair<Channel, UniqueFd> Channel::pair() {
  int fds[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
    throw std::runtime_error("socketpair failed");
  }
  return {Channel(UniqueFd(fds[0])), UniqueFd(fds[1])};
}

bool Channel::send(std::span<const std::byte> message) {
  ssize_t sent = 0;
  do {
    sent = ::send(fd_.get(), message.data(), message.size(), MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(message.size());
}

bool Channel::send(std::string_view text) {
  return send(std::as_bytes(std::span(text.data(), text.size())));
}

std::optional<std::vector<std::byte>> Channel::receive(Duration timeout) {
  const Deadline deadline = Deadline::in(timeout);
  pollfd entry{fd_.get(), POLLIN, 0};
  while (::poll(&entry, 1, deadline.left_ms()) <= 0) {
    if (deadline.passed()) return std::nullopt;
  }
  std::vector<std::byte> message(kMaxMessageBytes);
  ssize_t size = 0;
  do {
    size = ::recv(fd_.get(), message.data(), message.size(), 0);
  } while (size < 0 && errno == EINTR);
  if (size <= 0) return std::nullopt;
  message.resize(static_cast<size_t>(size));
  return message;
}

std::optional<std::string> Channel::receive_text(Duration timeout) {
  const auto message = receive(timeout);
  if (!message) return std::nullopt;
  return std::string(reinterpret_cast<const char*>(message->data()), message->size());
}

}  // namespace stagelink::test
