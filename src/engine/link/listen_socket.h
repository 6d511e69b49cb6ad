#pragma once

#include <string>

#include "base/endpoint.h"
#include "base/unique_fd.h"
#include "stagelink/result.h"

namespace stagelink::engine {

// A non-blocking listening socket at `path`, mode 0600. A socket file that nobody listens on is
// replaced. Errors: invalid_argument (path too long), already_exists, permission.
Result<UniqueFd> listen_unix_socket(const std::string& path);

// A non-blocking listening TCP socket; `bound` is told what it got (port 0 takes any free one).
// Errors: already_exists (port_in_use) with a hint how to find the holder, invalid_argument,
// permission. They name the address, and not the option that it comes from.
Result<UniqueFd> listen_tcp_socket(const Endpoint& bind, Endpoint& bound);

}  // namespace stagelink::engine
