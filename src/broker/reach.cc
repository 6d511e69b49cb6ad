#include "broker/reach.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/endpoint.h"

namespace stagelink::broker {
namespace {

constexpr int kKeepaliveSeconds = 1;
constexpr int kKeepaliveProbes = 3;

Status cannot_reach(const std::string& address, int error) {
  return Status(error == ECONNREFUSED ? Reason::kRefused : Reason::kUnreachable,
                fmt::format("{}: {}", address, std::strerror(error)));
}

// 0, or what errno says.
int connect_by(int socket, const addrinfo& to, const Deadline& deadline) {
  if (::connect(socket, to.ai_addr, to.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  for (;;) {
    pollfd wanted{socket, POLLOUT, 0};
    const int got = ::poll(&wanted, 1, deadline.left_ms());
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) return ETIMEDOUT;
    int error = 0;
    socklen_t size = sizeof(error);
    return ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
  }
}

// An idle connection does not notice that the wire has been cut, or that the other host has gone,
// unless the kernel asks.
void keep_asking(int socket) noexcept {
  const auto set = [socket](int level, int name, int value) {
    (void)::setsockopt(socket, level, name, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kKeepaliveSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kKeepaliveSeconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, kKeepaliveProbes);
}

}  // namespace

bool Reach::ended() noexcept {
  std::array<char, 256> greeting{};  // Of a protocol that is not spoken here.
  for (;;) {
    const ssize_t got = ::recv(socket_.get(), greeting.data(), greeting.size(), MSG_DONTWAIT);
    if (got > 0 || (got < 0 && errno == EINTR)) continue;
    return got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  }
}

Status Reach::check(const Deadline& deadline) {
  if (socket_ && !ended()) return {};
  socket_.reset();
  return connect(deadline);
}

Status Reach::connect(const Deadline& deadline) {
  SL_ASSIGN(const Endpoint endpoint, parse_endpoint(address_));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* raw = nullptr;
  const std::string port = std::to_string(endpoint.port);
  if (const int error = ::getaddrinfo(endpoint.host.c_str(), port.c_str(), &hints, &raw);
      error != 0) {
    return Status(Reason::kUnreachable, fmt::format("{}: {}", address_, ::gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> found(raw, &::freeaddrinfo);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
    UniqueFd socket(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) {
      error = errno;
      continue;
    }
    error = connect_by(socket.get(), *at, deadline);
    if (error == 0) {
      keep_asking(socket.get());
      socket_ = std::move(socket);
      return {};
    }
  }
  return cannot_reach(address_, error);
}

void Reach::wait_for_end(const Deadline& deadline) {
  pollfd wanted{socket_.get(), POLLIN | POLLRDHUP, 0};
  while (::poll(&wanted, 1, deadline.left_ms()) > 0) {
    if (!socket_ || ended()) return;
  }
}

}  // namespace stagelink::broker
