#include "transport/blocking_frames.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include "base/endpoint.h"
#include "base/mutex.h"
#include "transport/socket_io.h"

namespace stagelink::transport {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

struct Lookup {
  Mutex mutex;
  CondVar done;
  bool finished SL_GUARDED_BY(mutex) = false;
  int error SL_GUARDED_BY(mutex) = 0;
  AddressList list SL_GUARDED_BY(mutex){nullptr, &::freeaddrinfo};
};

Status wait_ready(int fd, short events, const Deadline& deadline, const char* what) {
  for (;;) {
    pollfd waiting{.fd = fd, .events = events, .revents = 0};
    const int ready = ::poll(&waiting, 1, deadline.left_ms());
    if (ready > 0) return {};  // The call that follows finds out about errors.
    if (ready < 0 && errno != EINTR) return socket_failure("poll", errno);
    if (deadline.passed())
      return Status(Reason::kConnectTimeout, fmt::format("{}: no answer", what));
  }
}

AddressList look_up(const std::string& host, uint16_t port, int flags, int& error) {
  addrinfo hints{};
  hints.ai_flags = flags | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  return {error == 0 ? found : nullptr, &::freeaddrinfo};
}

Status lookup_failure(const std::string& host, int error) {
  return Status(Reason::kUnreachable,
                fmt::format("host \"{}\" is not known: {}", host, ::gai_strerror(error)));
}

// The resolver takes no deadline, so names are looked up on a thread that is left to itself when
// the deadline passes; it ends with the resolver's own time limit.
Result<AddressList> resolve(const std::string& host, uint16_t port, const Deadline& deadline) {
  int error = 0;
  if (AddressList list = look_up(host, port, AI_NUMERICHOST, error); list != nullptr) return list;
  if (error != EAI_NONAME) return lookup_failure(host, error);

  auto lookup = std::make_shared<Lookup>();
  std::thread([lookup, host, port] {
    int failure = 0;
    AddressList list = look_up(host, port, 0, failure);
    MutexLock lock(lookup->mutex);
    lookup->finished = true;
    lookup->error = failure;
    lookup->list = std::move(list);
    lookup->done.notify_all();
  }).detach();

  MutexLock lock(lookup->mutex);
  while (!lookup->finished) {
    if (!lookup->done.wait_until(lookup->mutex, deadline)) {
      return Status(Reason::kConnectTimeout, fmt::format("looking up \"{}\": no answer", host));
    }
  }
  if (lookup->list == nullptr) return lookup_failure(host, lookup->error);
  return std::move(lookup->list);
}

Result<UniqueFd> open_socket(int family, int flags) {
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
  if (!fd) return socket_failure("socket", errno);
  return fd;
}

// The kernel says EADDRNOTAVAIL if no local port is free, and if there is no local address to come
// from. The second holds for UDP as well, whose ports are others.
Status no_local_address(const addrinfo& address, const std::string& what) {
  const UniqueFd probe(::socket(address.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!probe || ::connect(probe.get(), address.ai_addr, address.ai_addrlen) != 0) {
    return socket_failure(what, EADDRNOTAVAIL);
  }
  return Status(Reason::kNoPorts,
                what +
                    ": no local port is free for another connection there; see "
                    "net.ipv4.ip_local_port_range, and `ss -tan` for who holds them");
}

Status connect_failure(const addrinfo& address, const std::string& what, int error) {
  if (error == EADDRNOTAVAIL) return no_local_address(address, what);
  if (error == ETIMEDOUT) return Status(Reason::kConnectTimeout, what + ": no answer");
  return socket_failure(what, error);
}

Result<UniqueFd> connect_address(const addrinfo& address, const std::string& what,
                                 const Deadline& deadline) {
  SL_ASSIGN(UniqueFd fd, open_socket(address.ai_family, SOCK_NONBLOCK));
  if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return connect_failure(address, what, errno);
    SL_TRY(wait_ready(fd.get(), POLLOUT, deadline, what.c_str()));
    int error = 0;
    socklen_t size = sizeof(error);
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return connect_failure(address, what, error);
  }
  tune_tcp(fd.get());
  return fd;
}

// connect() on a UNIX socket waits for room in the listener's queue as long as its send timeout
// says, and poll() cannot wait for that.
Status connect_until(int fd, const sockaddr_un& address, const std::string& what,
                     const Deadline& deadline) {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(deadline.left());
    if (left.count() == 0) return Status(Reason::kConnectTimeout, what + ": no answer");
    const timeval limit{.tv_sec = left.count() / 1'000'000, .tv_usec = left.count() % 1'000'000};
    ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return {};
    if (errno != EAGAIN && errno != EINTR) return socket_failure(what, errno);
  }
}

Status receive_all(int fd, std::span<std::byte> into, std::vector<UniqueFd>& fds,
                   const Deadline& deadline) {
  size_t got = 0;
  while (got < into.size()) {
    SL_ASSIGN(const IoResult moved, receive_with_fds(fd, into.subspan(got), fds));
    switch (moved.kind) {
      case IoResult::Kind::kMoved: got += moved.bytes; break;
      case IoResult::Kind::kEnd:
        return Status(Reason::kConnectionCut, "the other side closed during the handshake");
      case IoResult::Kind::kWouldBlock:
        SL_TRY(wait_ready(fd, POLLIN, deadline, "handshake"));
        break;
    }
    if (fds.size() > wire::kMaxFds) {
      return Status(Reason::kFrame, "more descriptors came than a frame can carry");
    }
  }
  return {};
}

}  // namespace

Result<UniqueFd> connect_unix(const std::string& path, const Deadline& deadline) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("socket path \"{}\" has {} bytes; 1 to {} can be used", path,
                              path.size(), sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  SL_ASSIGN(UniqueFd fd, open_socket(AF_UNIX, 0));
  SL_TRY(connect_until(fd.get(), address, fmt::format("connect to {}", path), deadline));
  const timeval none{};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &none, sizeof(none));
  if (::fcntl(fd.get(), F_SETFL, O_NONBLOCK) != 0) return socket_failure("fcntl", errno);
  return fd;
}

Result<UniqueFd> connect_tcp(const std::string& host, uint16_t port, const Deadline& deadline) {
  if (host.empty() || port == 0) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("\"{}:{}\" is not an address to connect to", host, port));
  }
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const std::string plain = bracketed ? host.substr(1, host.size() - 2) : host;
  const std::string what = "connect to " + Endpoint{plain, port}.to_string();
  SL_ASSIGN(const AddressList list, resolve(plain, port, deadline));
  Status last(Reason::kUnreachable, what + ": the name has no address");
  int64_t untried = 0;
  for (const addrinfo* at = list.get(); at != nullptr; at = at->ai_next) ++untried;
  for (const addrinfo* at = list.get(); at != nullptr; at = at->ai_next, --untried) {
    auto fd = connect_address(*at, what, Deadline::in(deadline.left() / untried));
    if (fd.ok()) return fd;
    last = fd.status();
  }
  return last;
}

Status send_frame(int fd, wire::FrameType type, uint64_t request_id,
                  std::span<const std::byte> payload, const Deadline& deadline,
                  std::span<const UniqueFd> fds) {
  if (payload.size() > wire::max_payload_bytes(type)) {
    return Status(Reason::kTooLarge, fmt::format("a {} frame cannot carry {} bytes",
                                                 wire::frame_name(type), payload.size()));
  }
  const auto header = wire::encode(wire::FrameHeader{
      .type = type,
      .payload_bytes = static_cast<uint32_t>(payload.size()),
      .fd_count = static_cast<uint32_t>(fds.size()),
      .request_id = request_id,
  });
  std::vector<std::byte> bytes(header.begin(), header.end());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  size_t sent = 0;
  while (sent < bytes.size()) {
    SL_ASSIGN(const IoResult moved, send_with_fds(fd, std::span(bytes).subspan(sent), fds));
    sent += moved.bytes;
    if (sent > 0) fds = {};
    if (moved.kind == IoResult::Kind::kWouldBlock) {
      SL_TRY(wait_ready(fd, POLLOUT, deadline, "handshake"));
    }
  }
  return {};
}

Result<ReceivedFrame> receive_frame(int fd, const Deadline& deadline) {
  ReceivedFrame frame;
  std::array<std::byte, wire::kFrameHeaderBytes> header;
  SL_TRY(receive_all(fd, header, frame.fds, deadline));
  SL_ASSIGN(frame.header, wire::decode_frame_header(header));
  if (frame.header.payload_bytes > wire::kMaxControlBytes) {
    return Status(Reason::kFrame, fmt::format("a {} frame during the handshake",
                                              wire::frame_name(frame.header.type)));
  }
  frame.payload.resize(frame.header.payload_bytes);
  SL_TRY(receive_all(fd, frame.payload, frame.fds, deadline));
  if (frame.fds.size() != frame.header.fd_count) {
    return Status(Reason::kFrame, fmt::format("a {} frame announces {} descriptors and brings {}",
                                              wire::frame_name(frame.header.type),
                                              frame.header.fd_count, frame.fds.size()));
  }
  return frame;
}

}  // namespace stagelink::transport
