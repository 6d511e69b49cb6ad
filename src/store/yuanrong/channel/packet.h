#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/unique_fd.h"

// Packets of the socket between client and broker, each with at most one descriptor.
namespace stagelink::store::yuanrong {

// Waits for room as long as the socket's SO_SNDTIMEO allows. False: the other side has gone or does
// not take it.
bool send_packet(int socket, std::span<const std::byte> packet, int fd) noexcept;

struct Packet {
  enum class Kind : uint8_t { kNone, kPacket, kEnd };  // kNone: nothing is there just now.
  Kind kind = Kind::kEnd;
  std::vector<std::byte> bytes;
  UniqueFd fd;
};
// Does not wait. A packet that is too long counts as the end.
Packet receive_packet(int socket);

}  // namespace stagelink::store::yuanrong
