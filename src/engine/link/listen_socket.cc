#include "engine/link/listen_socket.h"

#include <cerrno>
#include <cstring>
#include <memory>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace stagelink::engine {
namespace {

constexpr int kBacklog = 128;

std::string error_text() { return std::strerror(errno); }

Status socket_failed() {
  if (errno == EMFILE || errno == ENFILE) {
    return Status(Reason::kNofile, "socket: too many open files: raise ulimit -n");
  }
  return Status(Reason::kSystem, "socket: " + error_text());
}

bool nobody_listens(const sockaddr_un& address) {
  const UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return probe &&
         ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
         errno == ECONNREFUSED;
}

// Empty, and errno, if that address cannot be had.
UniqueFd listen_at(const addrinfo& address) {
  UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return fd;
  const int on = 1;
  // A restarted process takes its old port again; two live listeners still collide.
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd.get(), address.ai_addr, address.ai_addrlen) == 0 &&
      ::listen(fd.get(), kBacklog) == 0) {
    return fd;
  }
  const int error = errno;
  fd.reset();
  errno = error;
  return fd;
}

Status listen_failed(const Endpoint& bind) {
  if (errno == EMFILE || errno == ENFILE) return socket_failed();
  const std::string where = "cannot listen on " + bind.to_string() + ": " + error_text();
  if (errno == EADDRINUSE) {
    return Status(Reason::kPortInUse, where + "; find the holder with: ss -ltnp 'sport = :" +
                                          std::to_string(bind.port) +
                                          "', or use port 0 for any free one");
  }
  if (errno == EACCES || errno == EPERM) return Status(Reason::kPermission, where);
  return Status(Reason::kInvalidArgument, where + "; it has to be an address of this host");
}

std::string numeric_host(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST];
  const int rc = ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof host,
                               nullptr, 0, NI_NUMERICHOST);
  return rc == 0 ? host : "";
}

uint16_t port_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace

Result<UniqueFd> listen_unix_socket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return Status(Reason::kInvalidArgument, "option runtime_dir: socket path " + path + " has " +
                                                std::to_string(path.size()) +
                                                " bytes, the system takes " +
                                                std::to_string(sizeof address.sun_path - 1));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return socket_failed();
  if (nobody_listens(address)) ::unlink(path.c_str());
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const Reason reason = errno == EADDRINUSE ? Reason::kAlreadyExists : Reason::kPermission;
    return Status(reason, "cannot create socket " + path + ": " + error_text());
  }
  if (::chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    const Status failed(Reason::kSystem, "socket " + path + ": " + error_text());
    ::unlink(path.c_str());
    return failed;
  }
  return fd;
}

Result<UniqueFd> listen_tcp_socket(const Endpoint& bind, Endpoint& bound) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int rc =
      ::getaddrinfo(bind.host.c_str(), std::to_string(bind.port).c_str(), &hints, &found);
  if (rc != 0) {
    return Status(Reason::kInvalidArgument, "host \"" + bind.host + "\": " + ::gai_strerror(rc));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> guard(found, &::freeaddrinfo);
  UniqueFd fd;
  for (const addrinfo* at = found; at != nullptr && !fd; at = at->ai_next) {
    fd = listen_at(*at);
  }
  if (!fd) return listen_failed(bind);
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return Status(Reason::kSystem, "getsockname: " + error_text());
  }
  bound = Endpoint{numeric_host(address, size), port_of(address)};
  return fd;
}

}  // namespace stagelink::engine
