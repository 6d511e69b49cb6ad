#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/random.h"
#include "base/unique_fd.h"
#include "connector/encoder_cache/registry/registry_client.h"
#include "connector/encoder_cache/registry/registry_server.h"

namespace stagelink::encoder_cache::test {

using namespace std::chrono_literals;

inline Deadline soon() { return Deadline::in(20s); }

inline PublishedItem item_of(std::string mm_hash, uint64_t rows = 4, uint64_t generation = 1) {
  return {.mm_hash = std::move(mm_hash),
          .info = {.nbytes = rows * 8 * 2, .shape = {rows, 8}, .dtype = "bfloat16"},
          .generation = generation};
}

inline PublishTerms terms_of(uint16_t port, Duration lease_ttl = 30s) {
  return {.lease = random_instance_id(),
          .lease_ttl = lease_ttl,
          .producer_zmq = "tcp://127.0.0.1:" + std::to_string(port)};
}

// A registry at a port of its own; a test that cannot have one fails.
inline std::unique_ptr<RegistryServer> start_registry(RegistryOptions options = {}) {
  if (options.port == 9018) options.port = 0;
  auto server = RegistryServer::start(options);
  if (!server.ok()) throw std::runtime_error(server.status().to_string());
  return *std::move(server);
}

inline std::string url_of(const RegistryServer& server) {
  return "http://" + server.endpoint().to_string();
}

inline std::unique_ptr<RegistryClient> client_of(const RegistryServer& server,
                                                 const std::string& secret_file = {}) {
  auto client = RegistryClient::create({.url = url_of(server), .secret_file = secret_file});
  if (!client.ok()) throw std::runtime_error(client.status().to_string());
  return *std::move(client);
}

// A TCP connection that says whatever a test wants.
class RawClient {
 public:
  explicit RawClient(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{.tv_sec = 20, .tv_usec = 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      throw std::runtime_error("connect");
    }
  }

  // False: the other side has closed.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  // Up to the end of the connection, or of patience.
  std::string receive_all() {
    std::string got;
    while (receive_some(got)) continue;
    return got;
  }
  // Until `count` heads have come with their bodies of `Content-Length`.
  std::string receive_answers(size_t count) {
    std::string got;
    while (answers_in(got) < count && receive_some(got)) continue;
    return got;
  }
  // Until `end` has come, or nothing more does.
  std::string receive_through(std::string_view end) {
    std::string got;
    while (got.find(end) == std::string::npos && receive_some(got)) continue;
    return got;
  }
  void half_close() { ::shutdown(fd_.get(), SHUT_WR); }
  void reset() { fd_.reset(); }

 private:
  bool receive_some(std::string& got) {
    char bytes[4096];
    const ssize_t count = ::recv(fd_.get(), bytes, sizeof bytes, 0);
    if (count > 0) got.append(bytes, static_cast<size_t>(count));
    return count > 0;
  }
  static size_t answers_in(std::string_view got) {
    size_t count = 0;
    for (;;) {
      const size_t end = got.find("\r\n\r\n");
      if (end == std::string_view::npos) return count;
      const size_t length = got.find("Content-Length: ");
      const size_t body = std::stoul(std::string(got.substr(length + 16, 12)));
      if (got.size() < end + 4 + body) return count;
      got.remove_prefix(end + 4 + body);
      ++count;
    }
  }

  UniqueFd fd_;
};

inline std::string get(std::string_view target) {
  return "GET " + std::string(target) + " HTTP/1.1\r\nHost: h\r\n\r\n";
}

}  // namespace stagelink::encoder_cache::test
