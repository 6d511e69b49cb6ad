#include "connector/moriio/messages/heartbeat.h"

#include "connector/moriio/messages/extra_fields.h"
#include "connector/moriio/messages/packed_map.h"

namespace stagelink::moriio {
namespace {

constexpr size_t kMaxKeys = 64;
constexpr size_t kMaxAddressBytes = 512;

}  // namespace

Result<Heartbeat> decode_heartbeat(std::span<const std::byte> frame) {
  SL_ASSIGN(MapReader map, MapReader::open("heartbeat", frame, {kMaxHeartbeatBytes, kMaxKeys}));
  Heartbeat out;
  out.type = map.text("type", 16);
  if (map.ok() && out.type != "P" && out.type != "D" && out.type != "HELLO") {
    map.reject("type", "is none of P, D, HELLO");
  }
  if (out.type == "HELLO") {  // Says that somebody lives, and perhaps where.
    if (map.has("http_address")) out.http_address = map.text("http_address", kMaxAddressBytes);
    SL_TRY(map.finish());
    return out;
  }
  out.http_address = map.text("http_address", kMaxAddressBytes);
  out.zmq_address = map.text("zmq_address", kMaxAddressBytes);
  out.dp_size = static_cast<uint32_t>(map.integer("dp_size", {1, kMaxDpRank + 1}));
  out.tp_size = static_cast<uint32_t>(map.integer("tp_size", {1, kMaxTpSize}));
  out.transfer_mode = map.text("transfer_mode", 16);
  if (map.ok() && out.transfer_mode != "READ" && out.transfer_mode != "WRITE") {
    map.reject("transfer_mode", "is neither READ nor WRITE");
  }
  // Here tp_size is the message's own key, so it is not an extra.
  out.extras = read_extras(map);
  out.extras.tp_size.reset();
  SL_TRY(map.finish());
  return out;
}

Result<Bytes> encode(const Heartbeat& heartbeat) {
  MapWriter map;
  map.text("type", heartbeat.type);
  if (heartbeat.type == "HELLO") {
    if (!heartbeat.http_address.empty()) map.text("http_address", heartbeat.http_address);
    Bytes hello = map.take();
    SL_TRY(decode_heartbeat(hello).status());
    return hello;
  }
  map.text("http_address", heartbeat.http_address);
  map.text("zmq_address", heartbeat.zmq_address);
  map.integer("dp_size", heartbeat.dp_size);
  map.integer("tp_size", heartbeat.tp_size);
  map.text("transfer_mode", heartbeat.transfer_mode);
  MessageExtras extras = heartbeat.extras;
  extras.tp_size.reset();
  write_extras(map, extras);
  Bytes out = map.take();
  SL_TRY(decode_heartbeat(out).status());
  return out;
}

}  // namespace stagelink::moriio
