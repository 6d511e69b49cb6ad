#include "broker/server.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "broker/packet.h"
#include "store/yuanrong/channel/broker_lock.h"

namespace stagelink::broker {
namespace {

namespace proto = store::yuanrong;

constexpr size_t kMostStrangers = 256;
constexpr size_t kMostPackets = 64;  // Of one client, before others have their turn.
constexpr int kFirstClientMs = 10'000;
constexpr int kLookAgainMs = 1'000;
constexpr int kLeavingMs = 50;
constexpr timeval kSendPatience{5, 0};  // For a client that does not read what it must.
// For the library to give back what the last clients held.
constexpr auto kLeavePatience = std::chrono::seconds(2);

Status system_failure(const char* what) {
  return Status(Reason::kSystem, fmt::format("{}: {}", what, std::strerror(errno)));
}

ucred peer_of(int socket) noexcept {
  ucred peer{0, static_cast<uid_t>(-1), static_cast<gid_t>(-1)};
  socklen_t size = sizeof(peer);
  (void)::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size);
  return peer;
}

}  // namespace

Server::Server(BrokerPlace place, Sdk& sdk, Mappings& mappings)
    : place_(std::move(place)),
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
  SL_TRY(watch_fd(place_.listener.get()));
  bool served = false;
  for (;;) {
    std::array<epoll_event, 64> events{};
    const bool leaving = served && sessions_.all().empty() && clients_.users() > 0;
    const int patience_ms = leaving ? kLeavingMs : served ? kLookAgainMs : kFirstClientMs;
    const int got = ::epoll_wait(epoll_.get(), events.data(), events.size(), patience_ms);
    if (got < 0 && errno != EINTR) return system_failure("epoll_wait");
    for (int i = 0; i < got; ++i) {
      const int fd = events[static_cast<size_t>(i)].data.fd;
      if (fd == place_.listener.get()) {
        accept_clients();
      } else {
        read_from(fd);
      }
    }
    const bool alone = strangers_.empty() && sessions_.all().empty() && all_left();
    if (alone && (got == 0 || served) && may_end()) return {};
    served = served || !alone;
  }
}

void Server::accept_clients() {
  for (;;) {
    UniqueFd socket(::accept4(place_.listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) return;
    if (peer_of(socket.get()).uid != ::geteuid() || strangers_.size() >= kMostStrangers) continue;
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
  if (const auto at = socket_of_.find(fd); at != socket_of_.end()) {
    // The event may be of one whose number this has got since.
    pollfd ended{fd, POLLIN, 0};
    if (::poll(&ended, 1, 0) > 0) drop(at->second);
    return;
  }
  if (!serve(fd)) drop(fd);
}

// False: the client has gone, or makes no sense.
bool Server::serve(int fd) {
  const Sessions::Pointer session = sessions_.find(fd);
  if (session == nullptr) return true;
  for (size_t i = 0; i < kMostPackets; ++i) {
    const proto::Packet packet = proto::receive_packet(fd);
    if (packet.kind == proto::Packet::Kind::kNone) return true;
    if (packet.kind == proto::Packet::Kind::kEnd || !session->handle(packet.bytes)) return false;
  }
  return true;
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
      watch_process((*session)->socket());
      // The worker is asked for its health with this client's keys: they must be good ones.
      (*session)->start([this](Session& connected) { watcher_.watch_for(connected); });
      return;
    }
    why = session.status();
  }
  log_failure("yuanrong broker: hello", why);
  if (socket) {
    (void)send_packet(socket.get(), welcome_packet({proto::kCodeBadRequest, why.to_string()}), -1);
  }
}

// A child that was forked keeps the socket of its parent open. Of a process that is not seen here,
// being of another pid namespace, the socket alone must do.
void Server::watch_process(int fd) {
  const pid_t pid = peer_of(fd).pid;
  if (pid <= 0) return;
  UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process || !watch_fd(process.get()).ok()) return;
  socket_of_[process.get()] = fd;
  processes_[fd] = std::move(process);
}

void Server::drop(int fd) {
  Sessions::Pointer session = sessions_.find(fd);
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  if (const auto at = processes_.find(fd); at != processes_.end()) {
    socket_of_.erase(at->second.get());
    processes_.erase(at);
  }
  sessions_.remove(fd);
  session->stop();
  leave_by_ = Deadline::in(kLeavePatience);
  try {
    std::thread([leaver = std::move(session)]() mutable {
      leaver->give_back();
      leaver = nullptr;  // Often the last one, which gives back the connections.
    }).detach();
  } catch (const std::system_error&) {  // No thread is left: its own ones do it.
  }
}

bool Server::all_left() { return clients_.users() == 0 || leave_by_.passed(); }

// Who starts a broker holds the lock, and finds either this one or none.
bool Server::may_end() {
  accept_clients();
  if (!strangers_.empty()) return false;
  if (!store::yuanrong::give_up_broker_files(place_.path, place_.claimed)) return false;
  accept_clients();
  return strangers_.empty();
}

}  // namespace stagelink::broker
