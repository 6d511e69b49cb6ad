#include "transport/socket_io.h"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "wire/frame.h"

namespace stagelink::transport {
namespace {

Result<IoResult> judge(const char* call, ssize_t moved, bool may_end) {
  if (moved > 0) return IoResult{IoResult::Kind::kMoved, static_cast<size_t>(moved)};
  if (moved == 0) return IoResult{may_end ? IoResult::Kind::kEnd : IoResult::Kind::kMoved, 0};
  if (errno == EAGAIN || errno == EWOULDBLOCK) return IoResult{IoResult::Kind::kWouldBlock, 0};
  return socket_failure(call, errno);
}

template <typename Call>
ssize_t uninterrupted(Call call) {
  ssize_t moved = 0;
  do {
    moved = call();
  } while (moved < 0 && errno == EINTR);
  return moved;
}

// The kernel reads the pieces of a message through a pointer to non-const.
msghdr message_of(std::span<const iovec> pieces) noexcept {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  return message;
}

constexpr size_t kControlBytes = CMSG_SPACE(sizeof(int) * wire::kMaxFds);

// Takes over every descriptor in the control data; returns how many there were.
size_t take_fds(msghdr& message, std::vector<UniqueFd>& fds) {
  size_t taken = 0;
  for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
    if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i, ++taken) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(at) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return taken;
}

}  // namespace

Result<IoResult> send_pieces(int fd, std::span<const iovec> pieces) {
  const msghdr message = message_of(pieces);
  return judge("send", uninterrupted([&] { return ::sendmsg(fd, &message, MSG_NOSIGNAL); }), false);
}

Result<IoResult> receive_pieces(int fd, std::span<const iovec> pieces) {
  msghdr message = message_of(pieces);
  return judge("receive", uninterrupted([&] { return ::recvmsg(fd, &message, 0); }), true);
}

Result<IoResult> send_with_fds(int fd, std::span<const std::byte> bytes,
                               std::span<const UniqueFd> fds) {
  const iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message = message_of({&piece, 1});
  alignas(cmsghdr) char control[kControlBytes] = {};
  if (fds.size() > wire::kMaxFds) return Status(Reason::kTooLarge, "too many descriptors to send");
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    for (size_t i = 0; i < fds.size(); ++i) {
      const int raw = fds[i].get();
      std::memcpy(CMSG_DATA(header) + i * sizeof(int), &raw, sizeof(int));
    }
  }
  return judge("send", uninterrupted([&] { return ::sendmsg(fd, &message, MSG_NOSIGNAL); }), false);
}

Result<IoResult> receive_with_fds(int fd, std::span<std::byte> into, std::vector<UniqueFd>& fds) {
  const iovec piece{into.data(), into.size()};
  msghdr message = message_of({&piece, 1});
  alignas(cmsghdr) char control[kControlBytes] = {};
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t moved = uninterrupted([&] { return ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC); });
  if (moved < 0) return judge("receive", moved, true);
  const size_t before = fds.size();
  const size_t taken = take_fds(message, fds);
  if ((message.msg_flags & MSG_CTRUNC) == 0) return judge("receive", moved, true);
  // The kernel has dropped descriptors: there were too many, or this process cannot hold them.
  fds.resize(before);
  if (taken >= wire::kMaxFds) {
    return Status(Reason::kFrame,
                  fmt::format("more than {} descriptors came at once", wire::kMaxFds));
  }
  return Status(Reason::kNofile,
                "descriptors from a peer could not be received: this process has too many open "
                "files; raise `ulimit -n`");
}

void widen_send_buffer(int fd) noexcept {
  const int wanted = 2 << 20;
  if (::setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &wanted, sizeof(wanted)) == 0) return;
  ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &wanted, sizeof(wanted));
}

void tune_tcp(int fd) noexcept {
  const auto set = [fd](int level, int option, int value) {
    ::setsockopt(fd, level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  // A host that has gone answers no probe; a process that is stopped leaves that to its kernel.
  constexpr int kIdleSeconds = 30;
  constexpr int kProbeSeconds = 10;
  constexpr int kProbes = 3;
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, kProbes);
}

void break_off(int fd) noexcept {
  const linger at_once{1, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
}

Status socket_failure(std::string_view what, int error) {
  const std::string text = fmt::format("{}: {}", what, std::strerror(error));
  switch (error) {
    case ECONNRESET:
    case EPIPE:
    case ENOTCONN:
    case ESHUTDOWN:
    case ETIMEDOUT: return Status(Reason::kConnectionCut, text);
    case EFAULT: return Status(Reason::kNotRegistered, text + "; the memory is not mapped");
    case EMFILE:
    case ENFILE:
    case ETOOMANYREFS: return Status(Reason::kNofile, text);
    case ENOMEM:
    case ENOBUFS: return Status(Reason::kLimit, text);
    case ECONNREFUSED:
    case ENOENT: return Status(Reason::kRefused, text);
    case EACCES:
    case EPERM: return Status(Reason::kPermission, text);
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EADDRNOTAVAIL: return Status(Reason::kUnreachable, text);
    default: return Status(Reason::kSystem, text);
  }
}

}  // namespace stagelink::transport
