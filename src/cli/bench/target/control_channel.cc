#include "cli/bench/target/control_channel.h"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

namespace stagelink::cli::bench {

namespace {

struct Header {
  uint32_t request;
  uint32_t failed;
  std::array<uint64_t, 6> values;
};

Status wait_for(int socket, short events, const Deadline& deadline) {
  pollfd entry{.fd = socket, .events = events, .revents = 0};
  for (;;) {
    const int ready = ::poll(&entry, 1, deadline.left_ms());
    if (ready > 0) return Status();
    if (ready == 0) {
      return Status(Reason::kTimedOut, "the other process of the benchmark does not answer");
    }
    if (errno != EINTR) {
      return Status(Reason::kPeerLost, fmt::format("poll: {}", std::strerror(errno)));
    }
  }
}

}  // namespace

Result<std::pair<ControlChannel, UniqueFd>> ControlChannel::create() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return Status(Reason::kLimit, fmt::format("socketpair: {}", std::strerror(errno)));
  }
  return std::pair(ControlChannel(UniqueFd(ends[0])), UniqueFd(ends[1]));
}

Status ControlChannel::send(const Message& message, const Deadline& deadline) {
  const Header header{static_cast<uint32_t>(message.request), message.failed, message.values};
  std::vector<std::byte> packet(sizeof header + message.payload.size());
  std::memcpy(packet.data(), &header, sizeof header);
  if (!message.payload.empty()) {
    std::memcpy(packet.data() + sizeof header, message.payload.data(), message.payload.size());
  }
  SL_TRY(wait_for(socket_.get(), POLLOUT, deadline));
  if (::send(socket_.get(), packet.data(), packet.size(), MSG_NOSIGNAL) < 0) {
    return Status(Reason::kPeerLost,
                  fmt::format("the other process of the benchmark: {}", std::strerror(errno)));
  }
  return Status();
}

Result<Message> ControlChannel::receive(const Deadline& deadline) {
  SL_TRY(wait_for(socket_.get(), POLLIN, deadline));
  std::vector<std::byte> packet(sizeof(Header) + Message::kMostPayload);
  const ssize_t received = ::recv(socket_.get(), packet.data(), packet.size(), 0);
  if (received < static_cast<ssize_t>(sizeof(Header))) {
    return Status(Reason::kPeerLost, "the other process of the benchmark has ended");
  }
  packet.resize(static_cast<size_t>(received));
  Header header{};
  std::memcpy(&header, packet.data(), sizeof header);
  Message message;
  message.request = static_cast<Request>(header.request);
  message.failed = header.failed;
  message.values = header.values;
  message.payload.assign(packet.begin() + sizeof header, packet.end());
  return message;
}

std::vector<std::byte> encode_hosted(const HostedBlobs& blobs) {
  std::vector<std::byte> payload(sizeof(uint32_t));
  const auto engine_bytes = static_cast<uint32_t>(blobs.engine.size());
  std::memcpy(payload.data(), &engine_bytes, sizeof engine_bytes);
  payload.insert(payload.end(), blobs.engine.begin(), blobs.engine.end());
  payload.insert(payload.end(), blobs.region.begin(), blobs.region.end());
  return payload;
}

HostedBlobs decode_hosted(std::span<const std::byte> payload) {
  uint32_t engine_bytes = 0;
  if (payload.size() < sizeof engine_bytes) return {};
  std::memcpy(&engine_bytes, payload.data(), sizeof engine_bytes);
  payload = payload.subspan(sizeof engine_bytes);
  if (engine_bytes > payload.size()) return {};
  const auto engine = payload.first(engine_bytes);
  const auto region = payload.subspan(engine_bytes);
  return {{engine.begin(), engine.end()}, {region.begin(), region.end()}};
}

}  // namespace stagelink::cli::bench
