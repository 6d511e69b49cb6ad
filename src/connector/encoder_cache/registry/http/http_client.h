#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/deadline.h"
#include "base/endpoint.h"
#include "base/unique_fd.h"
#include "stagelink/result.h"

namespace stagelink::encoder_cache {

struct HttpReply {
  int status = 0;
  std::string body;
  std::string registry;  // The header "Stagelink-Registry"; empty: not there.
};

// One HTTP/1.1 connection to one server, kept open between requests.
//
// Thread-safety: one thread at a time; interrupt() from any.
class HttpClient {
 public:
  // Errors: limit (nofile).
  static Result<std::unique_ptr<HttpClient>> create(Endpoint server, uint64_t max_body_bytes);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  struct Request {
    std::string_view method;
    std::string_view target;
    std::string_view body = {};
    std::string_view signature = {};
  };
  // `stale` is set if a kept connection had ended before a byte of the answer came: the request may
  // be tried again. Errors: unreachable, timed_out, peer_lost (connection_cut), cancelled, corrupt
  // (frame), limit (too_large).
  Result<HttpReply> ask(const Request& request, const Deadline& deadline, bool& stale);

  void interrupt() noexcept;  // Ends what waits and all that follows.
  bool interrupted() const noexcept;

 private:
  HttpClient(Endpoint server, uint64_t max_body_bytes, UniqueFd wake) noexcept;
  Status wait(short events, const Deadline& deadline);
  Status send_all(std::string_view head, std::string_view body, const Deadline& deadline);
  Result<HttpReply> receive(const Deadline& deadline, bool& any);

  const Endpoint server_;
  const uint64_t max_body_bytes_;
  const UniqueFd wake_;
  UniqueFd fd_;
};

}  // namespace stagelink::encoder_cache
