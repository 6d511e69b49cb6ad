#include "engine/link/acceptor.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "engine/core.h"
#include "engine/link/listen_socket.h"
#include "engine/link/owner_handshake.h"
#include "transport/blocking_frames.h"
#include "transport/socket_io.h"
#include "wire/frame.h"

namespace stagelink::engine {
namespace {

// Answers to a hello fit into an empty socket buffer; this only bounds a hostile guest.
constexpr Duration kAnswerTimeout = std::chrono::milliseconds(50);
// What a guest has for its hello before somebody of the same origin may take its place.
constexpr Duration kGrace = std::chrono::milliseconds(100);

// Whom guests have in common: an IPv4 address, an IPv6 network of 64 bits, a process of this host.
uint64_t origin_of(int fd, Carrier carrier) noexcept {
  if (carrier == Carrier::kUnix) {
    ucred credentials{};
    socklen_t size = sizeof credentials;
    (void)::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size);
    return static_cast<uint64_t>(credentials.pid);
  }
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET) return reinterpret_cast<sockaddr_in&>(address).sin_addr.s_addr;
  uint64_t network = 0;
  std::memcpy(&network, &reinterpret_cast<sockaddr_in6&>(address).sin6_addr, sizeof network);
  return network;
}

}  // namespace

class Acceptor::Listener final : public transport::PollHandler {
 public:
  Listener(Acceptor& acceptor, UniqueFd fd, Carrier carrier) noexcept
      : acceptor_(acceptor), fd_(std::move(fd)), carrier_(carrier) {}
  void on_ready(uint32_t) override { acceptor_.accept_from(fd_.get(), carrier_); }
  int fd() const noexcept { return fd_.get(); }

 private:
  Acceptor& acceptor_;
  UniqueFd fd_;
  const Carrier carrier_;
};

// An accepted connection whose handshake is not over.
class Acceptor::Guest final : public transport::PollHandler {
 public:
  Guest(Acceptor& acceptor, UniqueFd fd, Carrier carrier, Deadline deadline) noexcept
      : acceptor_(acceptor),
        fd_(std::move(fd)),
        carrier_(carrier),
        origin_(origin_of(fd_.get(), carrier)),
        grace_(Deadline::in(kGrace)),
        deadline_(deadline),
        handshake_(acceptor.core_.auth_key()) {}

  void on_ready(uint32_t) override {
    const Status progress = receive();
    if (!progress.ok() && !handshake_.begun()) return acceptor_.dismiss(*this);  // Somebody looked.
    if (!progress.ok()) {
      acceptor_.core_.report("hello", progress);
      acceptor_.core_.metrics().add(metrics::Counter::kHandshakesRefused);
      acceptor_.refuse(fd_.get(), progress);
      return acceptor_.dismiss(*this);
    }
    if (handshake_.done()) acceptor_.hear(*this, wire::Hello(handshake_.hello()));
  }
  int fd() const noexcept { return fd_.get(); }
  UniqueFd take_fd() noexcept { return std::move(fd_); }
  Carrier carrier() const noexcept { return carrier_; }
  uint64_t origin() const noexcept { return origin_; }
  bool had_its_time() const noexcept { return grace_.passed(); }
  bool overdue() const noexcept { return deadline_.passed(); }

 private:
  // What has come, and no further than the end of the handshake.
  Status receive() {
    while (const size_t want = handshake_.wanted()) {
      std::byte chunk[512];
      const ssize_t got = ::recv(fd_.get(), chunk, std::min(want, sizeof chunk), MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return {};
      if (got <= 0) return Status(Reason::kConnectionCut, "a guest left before its hello was over");
      SL_ASSIGN(const auto challenge, handshake_.take({chunk, static_cast<size_t>(got)}));
      if (!challenge.has_value()) continue;
      SL_TRY(transport::send_frame(fd_.get(), wire::FrameType::kChallenge, 0,
                                   wire::encode(*challenge), Deadline::in(kAnswerTimeout)));
    }
    return {};
  }

  Acceptor& acceptor_;
  UniqueFd fd_;
  const Carrier carrier_;
  const uint64_t origin_;
  const Deadline grace_;
  const Deadline deadline_;
  OwnerHandshake handshake_;
};

Acceptor::Acceptor(EngineCore& core, std::string socket_path) noexcept
    : core_(core), socket_path_(std::move(socket_path)) {}

Acceptor::~Acceptor() { unlink_socket(); }

Result<std::unique_ptr<Acceptor>> Acceptor::create(EngineCore& core, const std::string& socket_path,
                                                   const Endpoint& bind) {
  std::unique_ptr<Acceptor> acceptor(new Acceptor(core, socket_path));
  auto tcp = listen_tcp_socket(bind, acceptor->bound_);
  if (!tcp.ok()) {
    return Status(tcp.status().reason(), "option bind: " + std::string(tcp.status().message()));
  }
  auto local = listen_unix_socket(socket_path);
  if (!local.ok()) return local.status();
  acceptor->socket_bound_ = true;
  acceptor->tcp_ = std::make_unique<Listener>(*acceptor, *std::move(tcp), Carrier::kTcp);
  acceptor->unix_ = std::make_unique<Listener>(*acceptor, *std::move(local), Carrier::kUnix);
  return acceptor;
}

Status Acceptor::start(Greeted greeted) {
  greeted_ = std::move(greeted);
  SL_TRY(core_.loop().poller().add(unix_->fd(), EPOLLIN, unix_.get()));
  return core_.loop().poller().add(tcp_->fd(), EPOLLIN, tcp_.get());
}

void Acceptor::stop() noexcept {
  while (!guests_.empty()) dismiss(*guests_.front());
  for (auto* listener : {&unix_, &tcp_}) {
    if (*listener != nullptr) core_.loop().poller().remove((*listener)->fd(), listener->get());
    listener->reset();
  }
  unlink_socket();
}

void Acceptor::unlink_socket() noexcept {
  if (std::exchange(socket_bound_, false)) ::unlink(socket_path_.c_str());
}

bool Acceptor::tick() {
  std::vector<Guest*> overdue;
  for (const auto& guest : guests_) {
    if (guest->overdue()) overdue.push_back(guest.get());
  }
  for (Guest* guest : overdue) {
    core_.report("hello", Status(Reason::kConnectTimeout, "a guest did not end its hello in time"));
    core_.metrics().add(metrics::Counter::kHandshakesRefused);
    dismiss(*guest);
  }
  return !guests_.empty();
}

void Acceptor::accept_from(int listener, Carrier carrier) {
  UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd) {
    if (errno == EMFILE || errno == ENFILE) {
      core_.report("accept", Status(Reason::kNofile, "too many open files: raise ulimit -n"));
      core_.pause_accepting();
    }
    return;
  }
  if (carrier == Carrier::kTcp) transport::tune_tcp(fd.get());
  auto newcomer = std::make_unique<Guest>(*this, std::move(fd), carrier,
                                          Deadline::in(core_.options().connect_timeout));
  if (Guest* const leaves = one_too_many(carrier, *newcomer)) {
    turn_away(*leaves);
    if (leaves == newcomer.get()) return;
    dismiss(*leaves);
  }
  const Status added = core_.loop().poller().add(newcomer->fd(), EPOLLIN, newcomer.get());
  if (!added.ok()) return core_.report("accept", added);
  guests_.push_back(std::move(newcomer));
}

// Who has to leave so that there are no more than kMaxGuests: of the origin with most of them the
// oldest, or the newcomer if it is of that origin itself and nobody there has had its time. Null:
// there is room.
Acceptor::Guest* Acceptor::one_too_many(Carrier carrier, Guest& newcomer) const {
  size_t all = 0;
  size_t most = 0;
  Guest* oldest = nullptr;  // The list is in the order of arrival.
  for (const auto& guest : guests_) {
    if (guest->carrier() != carrier) continue;
    ++all;
    const auto alike = std::count_if(guests_.begin(), guests_.end(), [&](const auto& other) {
      return other->carrier() == carrier && other->origin() == guest->origin();
    });
    if (static_cast<size_t>(alike) <= most) continue;
    most = static_cast<size_t>(alike);
    oldest = guest.get();
  }
  if (all < kMaxGuests) return nullptr;
  const bool stays = oldest->origin() == newcomer.origin() && !oldest->had_its_time();
  return stays ? &newcomer : oldest;
}

void Acceptor::turn_away(Guest& guest) {
  refuse(guest.fd(), Status(Reason::kTooManyPeers, "too many handshakes at once; try again"));
  core_.metrics().add(metrics::Counter::kHandshakesRefused);
}

void Acceptor::pause(bool paused) noexcept {
  for (const auto* listener : {&unix_, &tcp_}) {
    if (*listener == nullptr) continue;
    (void)core_.loop().poller().modify(
        (*listener)->fd(), paused ? 0 : static_cast<uint32_t>(EPOLLIN), listener->get());
  }
}

void Acceptor::dismiss(Guest& guest) noexcept {
  core_.loop().poller().remove(guest.fd(), &guest);
  std::erase_if(guests_, [&](const auto& other) { return other.get() == &guest; });
}

void Acceptor::hear(Guest& guest, const wire::Hello& hello) {
  const Carrier carrier = guest.carrier();
  core_.loop().poller().remove(guest.fd(), &guest);
  UniqueFd fd = guest.take_fd();
  std::erase_if(guests_, [&](const auto& other) { return other.get() == &guest; });
  const Status allowed = check_hello(fd.get(), carrier, hello);
  if (!allowed.ok()) {
    core_.report("hello from " + hello.name, allowed);
    core_.metrics().add(metrics::Counter::kHandshakesRefused);
    return refuse(fd.get(), allowed);
  }
  if (hello.role == wire::Role::kProbe) {
    (void)transport::send_frame(fd.get(), wire::FrameType::kWelcome, 0,
                                wire::encode(core_.welcome(hello)), Deadline::in(kAnswerTimeout));
    return;
  }
  greeted_(std::move(fd), carrier, hello);
}

Status Acceptor::check_hello(int fd, Carrier carrier, const wire::Hello& hello) const {
  if (hello.target != InstanceId{} && hello.target != core_.instance()) {
    return Status(Reason::kRestarted, "instance " + hello.target.to_string() +
                                          " is gone; here is " + core_.instance().to_string());
  }
  if (carrier == Carrier::kUnix) return check_user(fd);
  if (hello.role == wire::Role::kProbe || core_.enabled(transport::TransportKind::kTcp)) {
    return Status();
  }
  return Status(Reason::kPermission,
                "this listener answers probes only: tcp is not among the engine's transports");
}

Status Acceptor::check_user(int fd) const {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return Status(Reason::kSystem, std::string("SO_PEERCRED: ") + std::strerror(errno));
  }
  if (credentials.uid != ::geteuid() && credentials.uid != 0) {
    return Status(Reason::kOtherUser, "uid " + std::to_string(credentials.uid) +
                                          " may not use memory of uid " +
                                          std::to_string(::geteuid()));
  }
  return Status();
}

void Acceptor::refuse(int fd, const Status& why) const {
  const wire::Outcome outcome{why.reason(), std::string(why.message())};
  (void)transport::send_frame(fd, wire::FrameType::kRefuse, 0, wire::encode(outcome),
                              Deadline::in(kAnswerTimeout));
}

}  // namespace stagelink::engine
