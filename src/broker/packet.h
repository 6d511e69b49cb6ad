#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "broker/sdk.h"
#include "store/yuanrong/channel/packet.h"

// What the broker says over the socket.
namespace stagelink::broker {

using store::yuanrong::send_packet;

std::vector<std::byte> welcome_packet(const SdkStatus& status);
std::vector<std::byte> arena_packet(uint64_t id, uint64_t bytes);
std::vector<std::byte> arena_gone_packet(uint64_t id);

}  // namespace stagelink::broker
