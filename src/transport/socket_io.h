#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <sys/uio.h>

#include "base/unique_fd.h"
#include "stagelink/result.h"

// One system call each, on non-blocking stream sockets. Interrupted calls are repeated.
namespace stagelink::transport {

struct IoResult {
  enum class Kind : uint8_t { kMoved, kWouldBlock, kEnd };
  Kind kind = Kind::kMoved;
  size_t bytes = 0;
};

// Errors of both: peer_lost (connection_cut); not_registered if the memory that `pieces` name is
// not there; limit.
Result<IoResult> send_pieces(int fd, std::span<const iovec> pieces);
Result<IoResult> receive_pieces(int fd, std::span<const iovec> pieces);

// The same with descriptors, which travel with the first byte of `bytes`.
Result<IoResult> send_with_fds(int fd, std::span<const std::byte> bytes,
                               std::span<const UniqueFd> fds);
// Appends received fds, close-on-exec. Errors besides the above: limit (nofile) if this process
// cannot hold more of them, corrupt (frame) if more than kMaxFds came at once; those that arrived
// are closed.
Result<IoResult> receive_with_fds(int fd, std::span<std::byte> into, std::vector<UniqueFd>& fds);

// Room for more bytes on their way, as far as the system grants it: fewer, larger system calls.
void widen_send_buffer(int fd) noexcept;

// Small frames leave a TCP socket at once, and the end of the other side's host is noticed within
// about a minute, also by a side that only waits.
void tune_tcp(int fd) noexcept;

// From now on closing the socket resets a TCP connection: bytes that have not arrived never do.
void break_off(int fd) noexcept;

// What errno value `error` of a socket call means.
Status socket_failure(std::string_view what, int error);

}  // namespace stagelink::transport
