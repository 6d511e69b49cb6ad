#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "stagelink/result.h"

namespace stagelink {

// A host and a port, as users write them: "host:port", "1.2.3.4:port", "[::1]:port",
// "[fe80::1%eth0]:port".
struct Endpoint {
  std::string host;  // Without brackets.
  uint16_t port = 0;

  // With brackets where the host has a colon.
  std::string to_string() const;
  bool wildcard() const noexcept;  // "0.0.0.0", "::", "*" or empty.
};

// Errors: invalid_argument names the input: no port, a port outside 0-65535, an IPv6 address
// without brackets (ambiguous), an unclosed bracket, an empty host.
Result<Endpoint> parse_endpoint(std::string_view text);

}  // namespace stagelink
