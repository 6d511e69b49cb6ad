#include "broker/packet.h"

#include <string>

#include "base/bytes.h"
#include "store/yuanrong/channel/protocol.h"

namespace stagelink::broker {

using store::yuanrong::Message;

std::vector<std::byte> welcome_packet(const SdkStatus& status) {
  ByteWriter writer;
  writer.put(Message::kWelcome);
  writer.put(status.code);
  writer.put_string(status.message.substr(0, store::yuanrong::kMaxMessageBytes));
  return writer.take();
}

std::vector<std::byte> arena_packet(uint64_t id, uint64_t bytes) {
  ByteWriter writer;
  writer.put(Message::kArena);
  writer.put(id);
  writer.put(bytes);
  return writer.take();
}

std::vector<std::byte> arena_gone_packet(uint64_t id) {
  ByteWriter writer;
  writer.put(Message::kArenaGone);
  writer.put(id);
  return writer.take();
}

}  // namespace stagelink::broker
