#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "stagelink/result.h"

// Addresses inside request ids, as a router writes them:
//   ___prefill_addr_{zmq}___decode_addr_{zmq}_{32 hex digits}
// where zmq is "host:IP,handshake:PORT,notify:PORT". vLLM may put text in front and "-..." behind.
namespace stagelink::moriio {

struct ZmqAddress {
  std::string host;  // Name, IPv4 or bare IPv6.
  uint16_t handshake_port = 0;
  uint16_t notify_port = 0;
  friend bool operator==(const ZmqAddress&, const ZmqAddress&) = default;
};

// Keys in any order, each once; further keys are ignored. Errors: invalid_argument names the key.
Result<ZmqAddress> parse_zmq_address(std::string_view text);
std::string to_text(const ZmqAddress& address);

// The two addresses of a request id. Errors: not_found if it has none, invalid_argument if one of
// them is wrong.
struct RequestAddresses {
  ZmqAddress prefill;
  ZmqAddress decode;
  friend bool operator==(const RequestAddresses&, const RequestAddresses&) = default;
};
Result<RequestAddresses> parse_request_id(std::string_view request_id);

// `unique` is 32 lower-case hex digits. Errors: invalid_argument.
Result<std::string> format_request_id(const RequestAddresses& addresses, std::string_view unique);

// "tcp://HOST:PORT", an IPv6 host in brackets.
std::string zmq_endpoint(std::string_view host, uint16_t port);

}  // namespace stagelink::moriio
