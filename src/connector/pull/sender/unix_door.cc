#include "connector/pull/sender/unix_door.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <exception>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "base/runtime_dir.h"

namespace stagelink::pull {
namespace {

constexpr size_t kMaxConnections = 4096;
constexpr size_t kMaxWaitingBytes = 16 << 20;  // Answers of one connection.
constexpr int kBacklog = 512;
constexpr int kSocketBytes = 1 << 20;  // Asked for; the kernel may give less.

Status door_failure(std::string_view what) {
  const int error = errno;
  return Status(
      error == EMFILE || error == ENFILE ? Reason::kNofile : Reason::kSystem,
      fmt::format("the door for receivers of this host: {}: {}", what, std::strerror(error)));
}

bool is_same_user(int socket) noexcept {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         peer.uid == ::geteuid();
}

bool watch(int epoll, int fd) noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

// What its receiver does not take at once waits here, and the door's thread sends it on.
class UnixDoor::Connection final : public Asker {
 public:
  Connection(UniqueFd fd, int epoll) noexcept : fd_(std::move(fd)), epoll_(epoll) {}

  bool answer(MessageSpan message) noexcept override {
    MutexLock lock(mutex_);
    if (ended_) return false;
    if (waiting_.empty() && send(message)) return true;
    if (!ended_ && waiting_bytes_ + message.size() <= kMaxWaitingBytes) {
      try {
        waiting_.emplace_back(message.begin(), message.end());
        waiting_bytes_ += message.size();
        if (waiting_.size() == 1) want_room(true);
        return true;
      } catch (const std::exception&) {  // No memory.
      }
    }
    // It does not read its answers: the connection ends, and its claims with it.
    ended_ = true;
    ::shutdown(fd_.get(), SHUT_RDWR);
    return false;
  }

  // The door's thread, when there is room.
  void go_on() noexcept {
    MutexLock lock(mutex_);
    while (!waiting_.empty() && send(waiting_.front())) {
      waiting_bytes_ -= waiting_.front().size();
      waiting_.pop_front();
    }
    if (waiting_.empty() && !ended_) want_room(false);
  }
  // Before the door forgets the descriptor.
  void end() noexcept {
    MutexLock lock(mutex_);
    ended_ = true;
    ::shutdown(fd_.get(), SHUT_RDWR);
    (void)::epoll_ctl(epoll_, EPOLL_CTL_DEL, fd_.get(), nullptr);
  }

 private:
  bool send(MessageSpan message) noexcept SL_REQUIRES(mutex_) {
    while (::send(fd_.get(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
      if (errno == EINTR) continue;
      ended_ = ended_ || errno != EAGAIN;
      return false;
    }
    return true;
  }
  void want_room(bool wanted) noexcept SL_REQUIRES(mutex_) {
    epoll_event event{};
    event.events = EPOLLIN | (wanted ? uint32_t{EPOLLOUT} : 0U);
    event.data.fd = fd_.get();
    (void)::epoll_ctl(epoll_, EPOLL_CTL_MOD, fd_.get(), &event);
  }

  const UniqueFd fd_;
  const int epoll_;  // The door's, while the connection has not ended.
  Mutex mutex_;
  bool ended_ SL_GUARDED_BY(mutex_) = false;
  std::deque<Message> waiting_ SL_GUARDED_BY(mutex_);
  size_t waiting_bytes_ SL_GUARDED_BY(mutex_) = 0;
};

Result<std::unique_ptr<UnixDoor>> UnixDoor::open(const std::string& configured,
                                                 const InstanceId& engine, OfferTable& table) {
  UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!listener || !epoll || !wake) return door_failure("no descriptor");
  constexpr int kTries = 3;
  for (int i = 0;; ++i) {
    SL_ASSIGN(std::string directory, runtime_dir(configured));
    std::string path = runtime_entry_path(directory, ::getpid(), engine, "pull");
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) {
      return Status(
          Reason::kInvalidArgument,
          fmt::format("runtime_dir {}: the path of a socket in it is too long", directory));
    }
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
      if (::listen(listener.get(), kBacklog) != 0) return door_failure("listen");
      if (!watch(epoll.get(), listener.get()) || !watch(epoll.get(), wake.get())) {
        return door_failure("epoll_ctl");
      }
      return std::unique_ptr<UnixDoor>(new UnixDoor(std::move(directory), std::move(path),
                                                    std::move(listener), std::move(epoll),
                                                    std::move(wake), table));
    }
    // Whoever closed last may just have removed the directory.
    if (errno != ENOENT || i == kTries) return door_failure(path);
  }
}

UnixDoor::UnixDoor(std::string directory, std::string path, UniqueFd listener, UniqueFd epoll,
                   UniqueFd wake, OfferTable& table) noexcept
    : directory_(std::move(directory)),
      path_(std::move(path)),
      listener_(std::move(listener)),
      epoll_(std::move(epoll)),
      wake_(std::move(wake)),
      table_(table) {}

UnixDoor::~UnixDoor() { stop(); }

void UnixDoor::stop() {
  if (stopping_.exchange(true)) return;
  ::eventfd_write(wake_.get(), 1);
  if (thread_.joinable()) thread_.join();
  ::unlink(path_.c_str());
  remove_if_empty(directory_);
}

void UnixDoor::start(Desk& desk) {
  desk_ = &desk;
  buffer_.resize(kMaxMessageBytes);
  thread_ = std::thread([this] { run(); });
}

void UnixDoor::nudge() noexcept {
  if (table_.next_due().time_since_epoch().count() < sleeps_until_.load()) {
    ::eventfd_write(wake_.get(), 1);
  }
}

void UnixDoor::run() {
  ::pthread_setname_np(::pthread_self(), "sl-pull-door");
  std::array<epoll_event, 64> events{};
  while (!stopping_.load()) {
    const int got = ::epoll_wait(epoll_.get(), events.data(), events.size(), sleep_ms());
    for (int i = 0; i < got; ++i) {
      const int fd = events[static_cast<size_t>(i)].data.fd;
      if (fd == listener_.get()) {
        accept_all();
      } else if (fd == wake_.get()) {
        eventfd_t ignored = 0;
        ::eventfd_read(fd, &ignored);
      } else {
        serve(fd, events[static_cast<size_t>(i)].events);
      }
    }
    sweep();
  }
  while (!connections_.empty()) end(connections_.begin()->first);
}

int UnixDoor::sleep_ms() {
  // Before the look: nudge() looks at it after the table has changed.
  sleeps_until_.store(INT64_MAX);
  const auto due = table_.next_due();
  if (due == OfferTable::Now::max()) return -1;
  sleeps_until_.store(due.time_since_epoch().count());
  return Deadline::after(OfferTable::Now::clock::now(), due - OfferTable::Now::clock::now())
      .left_ms();
}

void UnixDoor::accept_all() {
  while (true) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    const int fd = socket.get();
    if (!is_same_user(fd) || connections_.size() >= kMaxConnections) continue;
    (void)::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSocketBytes, sizeof kSocketBytes);
    if (!watch(epoll_.get(), fd)) continue;
    connections_.emplace(fd, std::make_shared<Connection>(std::move(socket), epoll_.get()));
    connected_.store(connections_.size());
  }
}

void UnixDoor::serve(int fd, uint32_t events) {
  const auto found = connections_.find(fd);
  if (found == connections_.end()) return;
  if ((events & EPOLLOUT) != 0) found->second->go_on();
  if ((events & ~uint32_t{EPOLLOUT}) == 0) return;
  const ssize_t got = ::recv(fd, buffer_.data(), buffer_.size(), MSG_TRUNC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return end(fd);
  messages_.fetch_add(1, std::memory_order_relaxed);  // A count of its own.
  const std::shared_ptr<Connection> connection = found->second;
  const size_t bytes = std::min(static_cast<size_t>(got), buffer_.size());
  desk_->handle(MessageSpan(buffer_).first(bytes), connection, /*greets=*/false);
}

void UnixDoor::end(int fd) {
  const auto found = connections_.find(fd);
  const std::shared_ptr<Connection> connection = std::move(found->second);
  connections_.erase(found);
  connected_.store(connections_.size());
  connection->end();
  table_.drop(*connection);
}

void UnixDoor::sweep() {
  const auto now = OfferTable::Now::clock::now();
  if (now < table_.next_due()) return;
  OfferTable::Outcomes ended;
  table_.expire(ended, now);
  desk_->tell(std::move(ended));
}

}  // namespace stagelink::pull
