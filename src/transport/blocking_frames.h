#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "stagelink/result.h"
#include "wire/frame.h"

// Frames over a socket from a thread that may wait: used for handshakes only.
namespace stagelink::transport {

struct ReceivedFrame {
  wire::FrameHeader header;
  std::vector<std::byte> payload;
  std::vector<UniqueFd> fds;
};

// Sockets are non-blocking and close-on-exec. Errors: unreachable (refused), timed_out
// (connect_timeout), limit (nofile, no_ports), invalid_argument. A name that has several addresses
// is tried in the system's order; an address that does not answer takes its share of the time.
Result<UniqueFd> connect_unix(const std::string& path, const Deadline& deadline);
Result<UniqueFd> connect_tcp(const std::string& host, uint16_t port, const Deadline& deadline);

// `fds` travel with it, over a UNIX socket.
Status send_frame(int fd, wire::FrameType type, uint64_t request_id,
                  std::span<const std::byte> payload, const Deadline& deadline,
                  std::span<const UniqueFd> fds = {});
// Errors: timed_out, peer_lost (connection_cut) if the other side closes, corrupt (frame).
Result<ReceivedFrame> receive_frame(int fd, const Deadline& deadline);

}  // namespace stagelink::transport
