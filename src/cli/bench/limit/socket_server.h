#pragma once

#include <cstddef>
#include <span>

#include "cli/bench/limit/tcp_pair.h"
#include "stagelink/status.h"

namespace stagelink::cli::bench {

// Answers orders (socket_protocol.h) over `memory` until the initiator closes the connection, which
// is success. Errors: corrupt (frame); timed_out; peer_lost in the middle of an order.
Status serve_socket(const TcpEnd& end, std::span<std::byte> memory);

}  // namespace stagelink::cli::bench
