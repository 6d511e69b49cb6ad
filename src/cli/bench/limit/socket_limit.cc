#include "cli/bench/limit/socket_limit.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <sys/socket.h>

#include "cli/bench/rig/process_load.h"

namespace stagelink::cli::bench {

namespace {

constexpr auto kTimeout = std::chrono::seconds(30);

// Where a run of `bytes` may begin, at or before `wanted`.
uint64_t start_of_run(uint64_t wanted, uint64_t bytes, uint64_t region) noexcept {
  return std::min(wanted, region - bytes);
}

template <typename Move>
Contender timed(Move move) {
  return [move](const Picks& picks, Sample& sample) -> Status {
    const double start_us = now_us();
    SL_TRY(move(picks));
    sample.wall_us = now_us() - start_us;
    return Status();
  };
}

}  // namespace

Result<std::unique_ptr<SocketLimit>> SocketLimit::create(TargetProcess& target, uint64_t region,
                                                         std::span<std::byte> local) {
  SL_ASSIGN(const TcpListener listener, TcpListener::create());
  SL_TRY(target.begin_socket(region, listener.port()));
  SL_ASSIGN(TcpEnd end, listener.accept(kTimeout));
  return std::unique_ptr<SocketLimit>(new SocketLimit(target, std::move(end), local));
}

SocketLimit::~SocketLimit() {
  ::shutdown(end_.fd(), SHUT_RDWR);
  const Status ended = target_.end_socket();
  if (!ended.ok()) fmt::print(stderr, "{}\n", ended.to_string());
}

Contender SocketLimit::scattered() {
  return timed([this](const Picks& picks) { return move_scattered(picks); });
}

Contender SocketLimit::plain() {
  return timed([this](const Picks& picks) { return move_plain(picks); });
}

Status SocketLimit::move_scattered(const Picks& picks) {
  const OrderHead head{.order = SocketOrder::kScattered,
                       .count = static_cast<uint32_t>(picks.sizes.size()),
                       .offset = 0,
                       .bytes = 0};
  order_.resize(sizeof head + picks.sizes.size() * sizeof(OrderRange));
  std::memcpy(order_.data(), &head, sizeof head);
  pieces_.clear();
  for (size_t i = 0; i < picks.sizes.size(); ++i) {
    const OrderRange range{.offset = picks.remote[i], .bytes = picks.sizes[i]};
    std::memcpy(order_.data() + sizeof head + i * sizeof range, &range, sizeof range);
    pieces_.push_back({local_.data() + picks.local[i], picks.sizes[i]});
  }
  SL_TRY(end_.send(order_));
  walk_.begin(pieces_);
  while (!walk_.over()) {
    const std::span<iovec> vectors = walk_.next();
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = vectors.size();
    const ssize_t moved = ::recvmsg(end_.fd(), &message, 0);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) {
      return Status(Reason::kPeerLost,
                    fmt::format("plain socket: recvmsg: {}", std::strerror(errno)));
    }
    walk_.moved(static_cast<size_t>(moved));
  }
  return Status();
}

Status SocketLimit::move_plain(const Picks& picks) const {
  uint64_t bytes = 0;
  for (const uint64_t size : picks.sizes) bytes += size;
  const uint64_t region = local_.size();
  const OrderHead head{.order = SocketOrder::kPlain,
                       .count = 0,
                       .offset = start_of_run(picks.remote[0], bytes, region),
                       .bytes = bytes};
  SL_TRY(end_.send(std::as_bytes(std::span(&head, 1))));
  return end_.receive(local_.subspan(start_of_run(picks.local[0], bytes, region), bytes));
}

Status SocketLimit::begin_ping_pong(uint32_t count) const {
  const OrderHead head{.order = SocketOrder::kEcho, .count = count, .offset = 0, .bytes = 0};
  return end_.send(std::as_bytes(std::span(&head, 1)));
}

Status SocketLimit::ping_pong() const {
  uint64_t word = 1;
  SL_TRY(end_.send(std::as_bytes(std::span(&word, 1))));
  return end_.receive(std::as_writable_bytes(std::span(&word, 1)));
}

}  // namespace stagelink::cli::bench
