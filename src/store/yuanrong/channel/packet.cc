#include "store/yuanrong/channel/packet.h"

#include <cerrno>
#include <cstring>

#include <sys/socket.h>

#include "store/yuanrong/channel/protocol.h"

namespace stagelink::store::yuanrong {

bool send_packet(int socket, std::span<const std::byte> packet, int fd) noexcept {
  iovec piece{const_cast<std::byte*>(packet.data()), packet.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(head), &fd, sizeof(int));
  }
  for (;;) {
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
    if (sent >= 0) return static_cast<size_t>(sent) == packet.size();
    if (errno != EINTR) return false;
  }
}

Packet receive_packet(int socket) {
  Packet out;
  out.bytes.resize(kMaxPacketBytes);
  iovec piece{out.bytes.data(), out.bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t got = -1;
  do {
    got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); got >= 0 && head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(head), sizeof(int));
    out.fd.reset(fd);
  }
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    out.kind = Packet::Kind::kNone;
  } else if (got > 0 && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0) {
    out.kind = Packet::Kind::kPacket;
    out.bytes.resize(static_cast<size_t>(got));
    return out;
  }
  out.bytes.clear();
  return out;
}

}  // namespace stagelink::store::yuanrong
