#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "connector/moriio/messages/message_fields.h"
#include "stagelink/result.h"

namespace stagelink::moriio {

// What an engine sends to the proxy every few seconds.
struct Heartbeat {
  std::string type;  // "P", "D" or, from a peer of former times, "HELLO": nothing else is in it
                     // but perhaps http_address.
  std::string http_address;  // "IP:PORT"
  std::string zmq_address;   // ZmqAddress as text.
  uint32_t dp_size = 1;      // Global.
  uint32_t tp_size = 1;
  std::string transfer_mode;  // "READ" or "WRITE".
  MessageExtras extras;
  friend bool operator==(const Heartbeat&, const Heartbeat&) = default;
};

// Errors: corrupt (frame), naming the key.
Result<Heartbeat> decode_heartbeat(std::span<const std::byte> frame);
Result<Bytes> encode(const Heartbeat& heartbeat);

}  // namespace stagelink::moriio
