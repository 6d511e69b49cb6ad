#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace stagelink::encoder_cache {

// A request whose head and body have arrived.
struct HttpRequest {
  std::string_view method;
  std::string_view target;
  std::string_view body;
  std::string_view signature;  // The header "Stagelink-Signature"; empty: not there.
};

// Takes the bytes of one connection and finds the requests in them. Boost.Beast parses; what is
// kept is bounded whatever comes.
//
// Thread-safety: used by one thread.
class RequestReader {
 public:
  RequestReader(size_t max_head_bytes, uint64_t max_body_bytes);
  ~RequestReader();
  RequestReader(const RequestReader&) = delete;
  RequestReader& operator=(const RequestReader&) = delete;

  enum class State : uint8_t { kMore, kReady, kRefused };
  // Room for what comes next; never empty while the state is kMore.
  std::span<char> prepare();
  // The first `bytes` of it have come.
  State commit(size_t bytes);
  // Goes on to the next request behind one that was ready.
  State next();

  // Of the state kMore. True once for a request whose client wants to be told to send its body.
  bool take_expectation();

  // Of the state kReady, and valid until the next call of a method that is not const.
  HttpRequest request() const;
  bool keep_alive() const;
  bool http_1_0() const;

  // Of the state kRefused: 400, 413 or 431.
  int refusal() const noexcept;
  // Nothing of a request has come.
  bool idle() const noexcept;

 private:
  struct Parts;
  State parse();
  const std::unique_ptr<Parts> parts_;
};

}  // namespace stagelink::encoder_cache
