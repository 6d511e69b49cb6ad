#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "base/deadline.h"
#include "base/endpoint.h"
#include "base/unique_fd.h"
#include "connector/encoder_cache/registry/http/request_reader.h"
#include "stagelink/result.h"

namespace stagelink::encoder_cache {

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string_view content_type = "application/json";  // Of static storage.
};

// The answer comes later, by HttpServer::respond(), or is this one at the deadline.
struct HttpParked {
  Deadline deadline;
  HttpResponse at_deadline;
};
using HttpAnswer = std::variant<HttpResponse, HttpParked>;

// What a server does with requests. Called on its thread.
class HttpHandler {
 public:
  // `connection` names the connection while it lives and is not used again.
  virtual HttpAnswer on_request(const HttpRequest& request, uint64_t connection) = 0;
  // A parked request has ended without respond(): its client left, or its deadline passed.
  virtual void on_unparked(uint64_t connection) = 0;
  virtual void on_nudge() = 0;
  // Comes a tick after the last of the others, and again after each tick while it says true.
  virtual bool on_tick() = 0;

 protected:
  ~HttpHandler() = default;
};

struct HttpLimits {
  uint32_t max_connections = 4096;
  uint64_t max_body_bytes = uint64_t{1} << 20;
  uint32_t max_head_bytes = 16 << 10;
  Duration request_timeout = std::chrono::seconds(10);
  Duration idle_timeout = std::chrono::seconds(75);
  Duration tick = std::chrono::seconds(1);
};

struct HttpCounts {
  uint64_t accepted = 0;
  uint64_t connections = 0;  // Open now.
  uint64_t turned_away = 0;  // Beyond max_connections.
  uint64_t malformed = 0;    // Answered with 400, 413, 417 or 431, closed.
  uint64_t timed_out = 0;    // Too slow in asking or in reading the answer.
  uint64_t wakes = 0;        // Of its thread.
};

// An HTTP/1.1 server on one thread, which holds any number of parked requests without waking. A
// client that is slow, silent or gone costs its connection until its time is up, and nobody else
// anything.
//
// Thread-safety: all methods may run at the same time, but respond(), which belongs to the thread.
class HttpServer {
 public:
  // Takes over a listening socket. `extra_header` ("Name: value\r\n") goes with every answer. The
  // handler outlives the server. Errors: limit (nofile).
  static Result<std::unique_ptr<HttpServer>> create(UniqueFd listener, const HttpLimits& limits,
                                                    std::string extra_header, HttpHandler& handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  void start();  // Once; the handler is called from now on.
  // Has no effect on a connection that is gone or not parked.
  void respond(uint64_t connection, HttpResponse response);

  // Calls HttpHandler::on_nudge() soon, once for any number of calls before it.
  void nudge() noexcept;

  HttpCounts counts() const noexcept;
  void close();  // Idempotent. No handler is called after it.

 private:
  class Core;
  explicit HttpServer(std::unique_ptr<Core> core) noexcept;
  const std::unique_ptr<Core> core_;
};

}  // namespace stagelink::encoder_cache
