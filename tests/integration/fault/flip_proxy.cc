#include "integration/fault/flip_proxy.h"

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <utility>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/deadline.h"
#include "base/endpoint.h"
#include "transport/blocking_frames.h"

namespace stagelink::test {
namespace {

constexpr size_t kChunk = 64 << 10;

}  // namespace

FlipProxy::FlipProxy(const std::string& target, uint64_t seed, uint64_t mean_bytes)
    : target_(target),
      mean_bytes_(mean_bytes),
      random_(seed),
      until_flip_(random_.below(mean_bytes)) {
  listener_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener_.get(), raw, size) != 0 || ::listen(listener_.get(), 64) != 0 ||
      ::getsockname(listener_.get(), raw, &size) != 0) {
    throw std::runtime_error("flip proxy: no listener");
  }
  port_ = ntohs(address.sin_port);
  stop_.reset(::eventfd(0, EFD_CLOEXEC));
  thread_ = std::thread([this] { serve(); });
}

FlipProxy::~FlipProxy() {
  const uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void FlipProxy::serve() {
  for (;;) {
    std::vector<pollfd> waits = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Pair& pair : pairs_) {
      for (const Way& way : pair.ways) {
        if (way.ended) continue;
        const bool sending = way.sent < way.bytes.size();
        waits.push_back(
            {sending ? way.to : way.from, static_cast<short>(sending ? POLLOUT : POLLIN), 0});
      }
    }
    if (::poll(waits.data(), waits.size(), -1) < 0 && errno != EINTR) return;
    if (waits[0].revents != 0) return;
    if (waits[1].revents != 0) take_connection();
    for (Pair& pair : pairs_) {
      for (Way& way : pair.ways) {
        if (way.ended) continue;
        if (!carry(way)) way.ended = true;
        count(pair, way.moved);
      }
    }
    std::erase_if(pairs_,
                  [](const Pair& pair) { return pair.ways[0].ended && pair.ways[1].ended; });
  }
}

void FlipProxy::take_connection() {
  UniqueFd near(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!near) return;
  auto endpoint = parse_endpoint(target_);
  if (!endpoint.ok()) return;
  auto far =
      transport::connect_tcp(endpoint->host, endpoint->port, Deadline::in(std::chrono::seconds(5)));
  if (!far.ok()) return;
  Pair pair{std::move(near), *std::move(far), {}};
  pair.ways[0] = {0, pair.near.get(), pair.far.get(), {}};
  pair.ways[1] = {1, pair.far.get(), pair.near.get(), {}};
  pairs_.push_back(std::move(pair));
  ++connections_;
}

// Resets the connection if it is due.
void FlipProxy::count(Pair& pair, size_t bytes) {
  const int64_t due = reset_after_;
  if (due < 0) return;
  if (std::exchange(pair.reset_order, reset_order_.load()) != reset_order_) pair.carried = 0;
  pair.carried += static_cast<int64_t>(bytes);
  if (pair.carried < due) return;
  reset_after_ = -1;
  const linger at_once{1, 0};
  for (UniqueFd* fd : {&pair.near, &pair.far}) {
    ::setsockopt(fd->get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }
  pair.ways[0].ended = pair.ways[1].ended = true;  // Closed by serve().
}

// False once this way is over; the other side is told.
bool FlipProxy::carry(Way& way) {
  way.moved = 0;
  if (way.sent == way.bytes.size()) {
    way.bytes.resize(kChunk);
    const ssize_t got = ::recv(way.from, way.bytes.data(), way.bytes.size(), MSG_DONTWAIT);
    way.bytes.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    way.sent = 0;
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got <= 0) {
      ::shutdown(way.to, SHUT_WR);
      return false;
    }
    if (swallows_) way.bytes.clear();
    if (way.bytes.empty()) return true;
    if (spoils_) flip(way.bytes);
    flip_one(way);
  }
  const ssize_t sent = ::send(way.to, way.bytes.data() + way.sent, way.bytes.size() - way.sent,
                              MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent > 0) way.sent += way.moved = static_cast<size_t>(sent);
  if (sent >= 0 || errno == EAGAIN || errno == EINTR) return true;
  ::shutdown(way.from, SHUT_RDWR);
  return false;
}

void FlipProxy::flip_one(Way& way) {
  std::atomic<int64_t>& left = one_[way.number];
  const int64_t at = left;
  const auto bytes = static_cast<int64_t>(way.bytes.size());
  if (at < 0) return;
  left = at < bytes ? -1 : at - bytes;
  if (at >= bytes) return;
  way.bytes[static_cast<size_t>(at)] ^= 1;
  ++flips_;
}

void FlipProxy::flip(std::vector<char>& bytes) {
  size_t left = bytes.size();
  while (until_flip_ < left) {
    left -= until_flip_ + 1;
    char& byte = bytes[bytes.size() - left - 1];
    byte = static_cast<char>(byte ^ (1 << random_.below(8)));
    ++flips_;
    until_flip_ = random_.below(2 * mean_bytes_);
  }
  until_flip_ -= left;
}

}  // namespace stagelink::test
