#include "connector/encoder_cache/registry/http/http_client.h"

#include <array>
#include <cerrno>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "transport/blocking_frames.h"
#include "transport/socket_io.h"

namespace stagelink::encoder_cache {
namespace {

namespace http = boost::beast::http;

constexpr uint32_t kMaxHeadBytes = 16 << 10;
constexpr size_t kReceiveBytes = 16 << 10;

Status cut(const Endpoint& server) {
  return Status(Reason::kConnectionCut, server.to_string() + " closed the connection");
}

Status no_http(const Endpoint& server, const boost::beast::error_code& error) {
  if (error == http::error::body_limit || error == http::error::header_limit) {
    return Status(Reason::kTooLarge, server.to_string() + ": the answer is too large");
  }
  return Status(Reason::kFrame, fmt::format("{}: the answer is not HTTP/1.1: {}",
                                            server.to_string(), error.message()));
}

// In Boost 1.74 the limit does not hold for an answer that says its length, for which memory is
// taken with the first byte of the body. The parser stops in front of it, as it is not eager.
boost::beast::error_code check_size(const http::response_parser<http::string_body>& parser,
                                    uint64_t max_bytes) {
  if (!parser.is_header_done()) return {};
  const auto length = parser.content_length();
  if (!length || *length <= max_bytes) return {};
  return make_error_code(http::error::body_limit);
}

}  // namespace

Result<std::unique_ptr<HttpClient>> HttpClient::create(Endpoint server, uint64_t max_body_bytes) {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return transport::socket_failure("eventfd", errno);
  return std::unique_ptr<HttpClient>(
      new HttpClient(std::move(server), max_body_bytes, std::move(wake)));
}

HttpClient::HttpClient(Endpoint server, uint64_t max_body_bytes, UniqueFd wake) noexcept
    : server_(std::move(server)), max_body_bytes_(max_body_bytes), wake_(std::move(wake)) {}

HttpClient::~HttpClient() = default;

void HttpClient::interrupt() noexcept {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t rung = ::write(wake_.get(), &one, sizeof one);
}

bool HttpClient::interrupted() const noexcept {
  pollfd at{.fd = wake_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&at, 1, 0) > 0;
}

Status HttpClient::wait(short events, const Deadline& deadline) {
  for (;;) {
    std::array<pollfd, 2> at = {{{.fd = fd_.get(), .events = events, .revents = 0},
                                 {.fd = wake_.get(), .events = POLLIN, .revents = 0}}};
    const int ready = ::poll(at.data(), at.size(), deadline.left_ms());
    if (ready < 0 && errno != EINTR) return transport::socket_failure("poll", errno);
    if (ready > 0 && at[1].revents != 0) {
      return Status(Reason::kCancelled, "the request was interrupted");
    }
    if (ready > 0) return {};
    if (deadline.passed()) {
      return Status(Reason::kTimedOut, server_.to_string() + " has not answered in time");
    }
  }
}

Status HttpClient::send_all(std::string_view head, std::string_view body,
                            const Deadline& deadline) {
  std::string bytes(head);
  bytes += body;
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t moved =
        ::send(fd_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (moved >= 0) {
      sent += static_cast<size_t>(moved);
    } else if (errno == EAGAIN) {
      SL_TRY(wait(POLLOUT, deadline));
    } else if (errno != EINTR) {
      return cut(server_);
    }
  }
  return {};
}

Result<HttpReply> HttpClient::receive(const Deadline& deadline, bool& any) {
  http::response_parser<http::string_body> parser;
  parser.header_limit(kMaxHeadBytes);
  parser.body_limit(max_body_bytes_);
  std::string pending;  // Of a head, or a line in front of a chunk, that has not all come.
  while (!parser.is_done()) {
    SL_TRY(wait(POLLIN, deadline));
    const size_t before = pending.size();
    if (before > kMaxHeadBytes) return Status(Reason::kTooLarge, "the answer's head is too large");
    pending.resize(before + kReceiveBytes);
    const ssize_t got = ::recv(fd_.get(), pending.data() + before, kReceiveBytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      pending.resize(before);
      continue;
    }
    boost::beast::error_code error;
    if (got <= 0) {
      if (got == 0 && any) parser.put_eof(error);
      if (got < 0 || !any || error || !parser.is_done()) return cut(server_);
      break;
    }
    any = true;
    pending.resize(before + static_cast<size_t>(got));
    size_t used = 0;
    while (used < pending.size() && !parser.is_done() && !error) {
      used += parser.put(boost::asio::buffer(pending.data() + used, pending.size() - used), error);
      if (!error) error = check_size(parser, max_body_bytes_);
    }
    if (error && error != http::error::need_more) return no_http(server_, error);
    pending.erase(0, used);
  }
  HttpReply reply;
  reply.status = static_cast<int>(parser.get().result_int());
  const auto registry = parser.get()["Stagelink-Registry"];
  reply.registry.assign(registry.data(), registry.size());
  if (!parser.get().keep_alive() || !pending.empty()) fd_.reset();
  reply.body = std::move(parser.get().body());
  return reply;
}

Result<HttpReply> HttpClient::ask(const Request& request, const Deadline& deadline, bool& stale) {
  stale = false;
  if (interrupted()) return Status(Reason::kCancelled, "the client was interrupted");
  const bool kept = static_cast<bool>(fd_);
  if (!kept) {
    SL_ASSIGN(fd_, transport::connect_tcp(server_.host, server_.port, deadline));
  }
  std::string head = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\n", request.method, request.target,
                                 server_.to_string());
  if (!request.signature.empty()) {
    head += fmt::format("Stagelink-Signature: {}\r\n", request.signature);
  }
  if (request.method != "GET") {
    head += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n",
                        request.body.size());
  }
  head += "\r\n";
  bool any = false;
  Result<HttpReply> reply(Status(Reason::kCancelled, "not asked"));
  if (Status sent = send_all(head, request.body, deadline); sent.ok()) {
    reply = receive(deadline, any);
  } else {
    reply = sent;
  }
  if (!reply.ok()) {
    fd_.reset();  // An answer that comes late is never taken for that of another request.
    stale = kept && !any && reply.status().code() == Code::kPeerLost;
  }
  return reply;
}

}  // namespace stagelink::encoder_cache
