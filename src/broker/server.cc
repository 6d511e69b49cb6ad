#include "broker/server.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "broker/packet.h"

namespace stagelink::broker {
namespace {

namespace proto = store::yuanrong;

constexpr size_t kMostStrangers = 256;
constexpr size_t kMostPackets = 64;  // Of one client, before others have their turn.
constexpr int kFirstClientMs = 10'000;
constexpr int kLookAgainMs = 1'000;
constexpr timeval kSendPatience{5, 0};  // For a client that does not read what it must.

Status system_failure(const char* what) {
  return Status(Reason::kSystem, fmt::format("{}: {}", what, std::strerror(errno)));
}

bool same_user(int socket) noexcept {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         peer.uid == ::geteuid();
}

}  // namespace

Server::Server(UniqueFd listener, std::string path, Sdk& sdk, Mappings& mappings)
    : listener_(std::move(listener)),
      path_(std::move(path)),
      mappings_(mappings),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      clients_(sdk),
      watcher_(sdk, clients_, sessions_) {}

Status Server::watch_fd(int fd) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return {};
  return system_failure("epoll_ctl");
}

Status Server::run() {
  if (!epoll_) return system_failure("epoll_create1");
  SL_TRY(watch_fd(listener_.get()));
  int patience_ms = kFirstClientMs;
  for (;;) {
    std::array<epoll_event, 64> events{};
    const int got = ::epoll_wait(epoll_.get(), events.data(), events.size(), patience_ms);
    if (got < 0 && errno != EINTR) return system_failure("epoll_wait");
    for (int i = 0; i < got; ++i) {
      const int fd = events[static_cast<size_t>(i)].data.fd;
      if (fd == listener_.get()) {
        accept_clients();
      } else {
        read_from(fd);
      }
    }
    const bool alone = strangers_.empty() && sessions_.all().empty();
    if (alone && (got == 0 || patience_ms == kLookAgainMs) && may_end()) return {};
    if (!alone) patience_ms = kLookAgainMs;
  }
}

void Server::accept_clients() {
  for (;;) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) return;
    if (!same_user(socket.get()) || strangers_.size() >= kMostStrangers) continue;
    (void)::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &kSendPatience,
                       sizeof(kSendPatience));
    const int fd = socket.get();
    if (watch_fd(fd).ok()) strangers_.emplace(fd, std::move(socket));
  }
}

void Server::read_from(int fd) {
  if (strangers_.contains(fd)) {
    greet(fd);
    return;
  }
  const Sessions::Pointer session = sessions_.find(fd);
  if (session == nullptr) return;
  for (size_t i = 0; i < kMostPackets; ++i) {
    const proto::Packet packet = proto::receive_packet(fd);
    if (packet.kind == proto::Packet::Kind::kNone) return;
    if (packet.kind == proto::Packet::Kind::kEnd || !session->handle(packet.bytes)) {
      drop(fd);
      return;
    }
  }
}

void Server::greet(int fd) {
  proto::Packet packet = proto::receive_packet(fd);
  if (packet.kind == proto::Packet::Kind::kNone) return;
  const auto at = strangers_.find(fd);
  UniqueFd socket = std::move(at->second);
  strangers_.erase(at);
  ByteReader reader(packet.bytes);
  if (packet.kind == proto::Packet::Kind::kEnd || !packet.fd ||
      reader.get<proto::Message>() != proto::Message::kHello) {
    return;
  }
  auto options = proto::decode_worker_options(std::span(packet.bytes).subspan(sizeof(uint32_t)));
  Status why = options.status();
  if (why.ok()) {
    // The epoll entry goes with the last descriptor, so the session's own must be the same one.
    auto session = Session::create(std::move(socket), std::move(packet.fd), *std::move(options),
                                   clients_, mappings_);
    if (session.ok()) {
      sessions_.add(*session);
      watcher_.watch_for(**session);
      (*session)->start();
      return;
    }
    why = session.status();
  }
  log_failure("yuanrong broker: hello", why);
  if (socket) {
    (void)send_packet(socket.get(), welcome_packet({proto::kCodeBadRequest, why.to_string()}), -1);
  }
}

void Server::drop(int fd) {
  const Sessions::Pointer session = sessions_.find(fd);
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  session->stop();
  sessions_.remove(fd);
}

// Who starts a broker holds the lock, and finds either this one or none.
bool Server::may_end() {
  const UniqueFd lock(::open((path_ + ".lock").c_str(), O_RDWR | O_CLOEXEC));
  if (lock ? ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 : errno != ENOENT) return false;
  accept_clients();
  if (!strangers_.empty()) return false;
  ::unlink(path_.c_str());
  ::unlink((path_ + ".lock").c_str());
  return true;
}

}  // namespace stagelink::broker
