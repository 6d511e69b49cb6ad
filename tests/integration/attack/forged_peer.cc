#include "integration/attack/forged_peer.h"

#include <cerrno>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/endpoint.h"
#include "base/random.h"
#include "integration/support/engine_test.h"
#include "wire/engine_desc.h"
#include "wire/frame.h"

namespace stagelink::test {

ForgedPeer::ForgedPeer(const Engine& victim) : instance_(random_instance_id()) {
  const wire::EngineDesc desc = must(wire::decode_engine_desc(victim.descriptor()));
  hello_.version = wire::own_version();
  hello_.instance = instance_;
  hello_.host = desc.host;
  hello_.pid = static_cast<uint32_t>(::getpid());
  hello_.name = "forged";
  path_ = desc.socket_path;
  address_ = victim.address();
}

UniqueFd ForgedPeer::dial_unix() const {
  return must(transport::connect_unix(path_, Deadline::in(5s)));
}

UniqueFd ForgedPeer::dial_tcp() const {
  const Endpoint endpoint = must(parse_endpoint(address_));
  return must(transport::connect_tcp(endpoint.host, endpoint.port, Deadline::in(5s)));
}

std::vector<std::byte> ForgedPeer::hello(wire::Role role, InstanceId target) const {
  wire::Hello hello = hello_;
  hello.role = role;
  hello.target = target;
  return wire::encode(hello);
}

void ForgedPeer::pretend_a_secret() {
  hello_.authenticates = true;
  hello_.nonce.fill(std::byte{0x77});
}

std::optional<transport::ReceivedFrame> ForgedPeer::greet(int fd, wire::Role role,
                                                          InstanceId target) const {
  // A victim that hangs up at once leaves its answer to be read.
  (void)transport::send_frame(fd, wire::FrameType::kHello, 0, hello(role, target),
                              Deadline::in(5s));
  auto answer = transport::receive_frame(fd, Deadline::in(5s));
  if (!answer.ok()) return std::nullopt;
  return *std::move(answer);
}

void ForgedPeer::half_greet(int fd) const {
  const auto header =
      wire::encode(wire::FrameHeader{.type = wire::FrameType::kHello, .payload_bytes = 60});
  (void)::send(fd, header.data(), header.size(), MSG_NOSIGNAL);
}

bool hangs_up(int fd, Duration timeout) {
  const Deadline deadline = Deadline::in(timeout);
  while (!deadline.passed()) {
    pollfd waiting{fd, POLLIN, 0};
    if (::poll(&waiting, 1, deadline.left_ms()) != 1) continue;
    char bytes[4096];
    const ssize_t got = ::recv(fd, bytes, sizeof bytes, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return true;
  }
  return false;
}

}  // namespace stagelink::test
