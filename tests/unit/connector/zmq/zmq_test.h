#pragma once

#include <memory>
#include <stdexcept>
#include <string_view>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/unique_fd.h"
#include "connector/zmq/socket.h"

namespace stagelink::zmq::test {

using namespace std::chrono_literals;

// A context over the system's library; a test that cannot have one fails.
inline std::shared_ptr<Context> make_context() {
  auto library = Library::load();
  if (!library.ok()) throw std::runtime_error(library.status().to_string());
  auto context = Context::create(*library);
  if (!context.ok()) throw std::runtime_error(context.status().to_string());
  return *context;
}

inline Bytes bytes_of(std::string_view text) {
  const auto* const data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

inline std::string text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline Deadline soon() { return Deadline::in(20s); }

inline Status send_text(Socket& socket, std::string_view text, const Deadline& deadline = soon()) {
  const FrameSpan frame = std::as_bytes(std::span(text));
  return socket.send(std::span(&frame, 1), deadline);
}

// A port that is taken and at which nobody listens, as long as this lives.
class DeadPort {
 public:
  DeadPort() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const raw = reinterpret_cast<sockaddr*>(&address);
    if (::bind(fd_.get(), raw, size) != 0 || ::getsockname(fd_.get(), raw, &size) != 0) {
      throw std::runtime_error("no port");
    }
    endpoint_ = {"127.0.0.1", ntohs(address.sin_port)};
  }
  const Endpoint& endpoint() const noexcept { return endpoint_; }

 private:
  UniqueFd fd_;
  Endpoint endpoint_;
};

}  // namespace stagelink::zmq::test
