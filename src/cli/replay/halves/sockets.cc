#include "cli/replay/halves/sockets.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

namespace stagelink::cli::replay {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* first) const noexcept { ::freeaddrinfo(first); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Result<Addresses> resolve(const std::string& host, uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const char* const node = host == "*" || host.empty() ? nullptr : host.c_str();
  const int error = ::getaddrinfo(node, std::to_string(port).c_str(), &hints, &found);
  if (error == 0) return Addresses(found);
  return Status(Reason::kInvalidArgument,
                fmt::format("\"{}\" is no host: {}", host, ::gai_strerror(error)));
}

Result<UniqueFd> open_socket(const addrinfo& address) {
  UniqueFd socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return Status(Reason::kNofile, fmt::format("socket: {}", std::strerror(errno)));
  const int one = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  return socket;
}

// IPv4 addresses become mapped ones, so that there is one kind.
sockaddr_in6 as_six(const sockaddr_storage& address) noexcept {
  sockaddr_in6 six{};
  if (address.ss_family == AF_INET6) {
    std::memcpy(&six, &address, sizeof six);
    return six;
  }
  sockaddr_in four{};
  std::memcpy(&four, &address, sizeof four);
  six.sin6_family = AF_INET6;
  six.sin6_addr.s6_addr[10] = six.sin6_addr.s6_addr[11] = 0xff;
  std::memcpy(&six.sin6_addr.s6_addr[12], &four.sin_addr, sizeof four.sin_addr);
  return six;
}

sockaddr_in6 as_six(const addrinfo& address) noexcept {
  sockaddr_storage storage{};
  std::memcpy(&storage, address.ai_addr, address.ai_addrlen);
  return as_six(storage);
}

Status refused(const Endpoint& to) {
  return Status(Reason::kRefused, fmt::format("{}: {}", to.to_string(), std::strerror(errno)));
}

// Leaves the source to the kernel where `from` has no address of that family.
Status bind_source(int socket, const Endpoint& from, int family) {
  if (from.wildcard()) return {};
  SL_ASSIGN(const Addresses sources, resolve(from.host, 0, 0));
  for (const addrinfo* at = sources.get(); at != nullptr; at = at->ai_next) {
    if (at->ai_family != family) continue;
    if (::bind(socket, at->ai_addr, at->ai_addrlen) == 0) return {};
    return Status(Reason::kInvalidArgument, fmt::format("--bind: {} is no address of this host: {}",
                                                        from.host, std::strerror(errno)));
  }
  return Status(Reason::kInvalidArgument,
                fmt::format("--bind: {} has no address of --peer's family", from.host));
}

Status wait_connected(int socket, const Endpoint& to, const Deadline& deadline) {
  pollfd entry{.fd = socket, .events = POLLOUT, .revents = 0};
  while (::poll(&entry, 1, deadline.left_ms()) < 0 && errno == EINTR && !deadline.passed()) {
  }
  if (entry.revents == 0) {
    return Status(Reason::kConnectTimeout, fmt::format("{} does not answer", to.to_string()));
  }
  int error = 0;
  socklen_t bytes = sizeof error;
  ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &bytes);
  errno = error;
  return error == 0 ? Status() : refused(to);
}

}  // namespace

Result<UniqueFd> listen_at(const Endpoint& endpoint) {
  SL_ASSIGN(const Addresses addresses, resolve(endpoint.host, endpoint.port, AI_PASSIVE));
  int error = 0;
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    SL_ASSIGN(UniqueFd socket, open_socket(*at));
    if (::bind(socket.get(), at->ai_addr, at->ai_addrlen) == 0 && ::listen(socket.get(), 8) == 0) {
      return socket;
    }
    error = errno;
  }
  const Reason reason = error == EADDRINUSE ? Reason::kPortInUse : Reason::kInvalidArgument;
  return Status(reason, fmt::format("--bind {}: {}", endpoint.to_string(), std::strerror(error)));
}

Result<UniqueFd> connect_from(const Endpoint& from, const Endpoint& to, const Deadline& deadline) {
  SL_ASSIGN(const Addresses addresses, resolve(to.host, to.port, 0));
  Status last(Reason::kRefused, fmt::format("{} has no address", to.to_string()));
  for (const addrinfo* at = addresses.get(); at != nullptr && !deadline.passed();
       at = at->ai_next) {
    SL_ASSIGN(UniqueFd socket, open_socket(*at));
    last = bind_source(socket.get(), from, at->ai_family);
    if (!last.ok()) continue;
    if (::connect(socket.get(), at->ai_addr, at->ai_addrlen) != 0 && errno != EINPROGRESS) {
      last = refused(to);
      continue;
    }
    last = wait_connected(socket.get(), to, deadline);
    if (last.ok()) return socket;
  }
  return last;
}

Result<bool> is_of_host(const sockaddr_in6& address, const std::string& host) {
  SL_ASSIGN(const Addresses addresses, resolve(host, 0, 0));
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    const sockaddr_in6 known = as_six(*at);
    if (std::memcmp(&known.sin6_addr, &address.sin6_addr, sizeof known.sin6_addr) == 0) return true;
  }
  return false;
}

Result<Guest> take_guest(int listener) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  Guest guest;
  guest.socket.reset(::accept4(listener, reinterpret_cast<sockaddr*>(&address), &bytes,
                               SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!guest.socket) {
    return Status(Reason::kNofile, fmt::format("accept: {}", std::strerror(errno)));
  }
  const int one = 1;
  ::setsockopt(guest.socket.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  std::array<char, NI_MAXHOST> text{};
  ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), bytes, text.data(), text.size(),
                nullptr, 0, NI_NUMERICHOST);
  guest.text = text.data();
  guest.address = as_six(address);
  return guest;
}

}  // namespace stagelink::cli::replay
