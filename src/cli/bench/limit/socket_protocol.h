#pragma once

#include <cstdint>

namespace stagelink::cli::bench {

// What goes over the plain TCP connection that the engine is measured against. The initiator sends
// an order, for kScattered with `count` ranges behind it; the target answers with bytes and nothing
// else. Both ends are this program on one host.
enum class SocketOrder : uint32_t {
  kScattered,  // The bytes of `count` ranges, in order.
  kPlain,      // `bytes` bytes from `offset` on.
  kEcho,       // Then `count` times: 8 bytes come and are sent back.
};

struct OrderHead {
  SocketOrder order = SocketOrder::kEcho;
  uint32_t count = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

struct OrderRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Vectors of one sendmsg or recvmsg.
inline constexpr uint32_t kVectorsPerCall = 512;
inline constexpr uint32_t kMostOrderRanges = 1 << 20;

}  // namespace stagelink::cli::bench
