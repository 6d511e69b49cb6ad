#pragma once

#include <string>

#include <netinet/in.h>

#include "base/deadline.h"
#include "base/endpoint.h"
#include "base/unique_fd.h"
#include "stagelink/result.h"

// TCP sockets for the parents of two halves. All are non-blocking; nothing here waits for longer
// than its deadline.
namespace stagelink::cli::replay {

// Listens at the first address of `endpoint` that can be bound. Errors: already_exists
// (port_in_use), invalid_argument (no such address).
Result<UniqueFd> listen_at(const Endpoint& endpoint);

// A connection from one of `from`'s addresses (any of them if it is a wildcard) to one of `to`'s,
// whichever answers first. Errors: unreachable (refused), timed_out, invalid_argument.
Result<UniqueFd> connect_from(const Endpoint& from, const Endpoint& to, const Deadline& deadline);

// Whether `address` is one of the host's. Errors: invalid_argument (no such host).
Result<bool> is_of_host(const sockaddr_in6& address, const std::string& host);

// A guest of a listening socket and where it comes from, an IPv4 address as a mapped one. No value:
// nobody came until the deadline.
struct Guest {
  UniqueFd socket;
  sockaddr_in6 address;
  std::string text;  // The address, for people.
};
Result<Guest> take_guest(int listener);

}  // namespace stagelink::cli::replay
