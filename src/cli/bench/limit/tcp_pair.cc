#include "cli/bench/limit/tcp_pair.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

namespace stagelink::cli::bench {

namespace {

sockaddr_in loopback(uint16_t port) noexcept {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

Status failure(Reason reason, const char* what) {
  return Status(reason, fmt::format("plain socket: {}: {}", what, std::strerror(errno)));
}

Result<UniqueFd> make_socket() {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return failure(Reason::kNofile, "socket");
  return socket;
}

Status ended(ssize_t moved) {
  if (moved == 0) return Status(Reason::kPeerLost, "plain socket: the other end has closed");
  if (errno == EAGAIN) return Status(Reason::kTimedOut, "plain socket: no byte moved in time");
  return failure(Reason::kPeerLost, "transfer");
}

}  // namespace

Result<TcpEnd> TcpEnd::prepare(UniqueFd socket, Duration timeout) {
  const int one = 1;
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(timeout).count();
  const timeval limit{.tv_sec = seconds, .tv_usec = 0};
  const bool set = ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0 &&
                   ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0 &&
                   ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0;
  if (!set) return failure(Reason::kSystem, "setsockopt");
  return TcpEnd(std::move(socket));
}

Result<TcpEnd> TcpEnd::connect(uint16_t port, Duration timeout) {
  SL_ASSIGN(UniqueFd socket, make_socket());
  const sockaddr_in address = loopback(port);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return failure(Reason::kRefused, "connect");
  }
  return prepare(std::move(socket), timeout);
}

Status TcpEnd::send(std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t moved = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return ended(moved);
    bytes = bytes.subspan(static_cast<size_t>(moved));
  }
  return Status();
}

Status TcpEnd::receive(std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t moved = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return ended(moved);
    bytes = bytes.subspan(static_cast<size_t>(moved));
  }
  return Status();
}

Result<TcpListener> TcpListener::create() {
  SL_ASSIGN(UniqueFd socket, make_socket());
  sockaddr_in address = loopback(0);
  socklen_t bytes = sizeof address;
  const bool listens =
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      ::listen(socket.get(), 1) == 0 &&
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &bytes) == 0;
  if (!listens) return failure(Reason::kSystem, "listen");
  return TcpListener(std::move(socket), ntohs(address.sin_port));
}

Result<TcpEnd> TcpListener::accept(Duration timeout) const {
  pollfd entry{.fd = socket_.get(), .events = POLLIN, .revents = 0};
  const Deadline deadline = Deadline::in(timeout);
  while (::poll(&entry, 1, deadline.left_ms()) <= 0) {
    if (deadline.passed()) {
      return Status(Reason::kTimedOut, "plain socket: the target does not connect");
    }
  }
  UniqueFd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket) return failure(Reason::kNofile, "accept");
  return TcpEnd::prepare(std::move(socket), timeout);
}

}  // namespace stagelink::cli::bench
