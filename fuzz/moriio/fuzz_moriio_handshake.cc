#include <cstdint>
#include <cstdlib>
#include <span>

#include "connector/moriio/messages/handshake.h"
#include "connector/moriio/messages/heartbeat.h"

namespace {

template <typename T>
void check(std::span<const std::byte> input,
           stagelink::Result<T> (*decode)(std::span<const std::byte>)) {
  const auto decoded = decode(input);
  if (!decoded.ok()) {
    if (decoded.status().message().empty()) std::abort();
    return;
  }
  const auto bytes = encode(*decoded);
  if (!bytes.ok()) std::abort();
  const auto again = decode(*bytes);
  if (!again.ok() || !(*again == *decoded)) std::abort();
}

}  // namespace

// The first byte chooses the payload; the last choice is a request.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stagelink::moriio;
  if (size == 0) return 0;
  const auto input = std::as_bytes(std::span(data + 1, size - 1));
  switch (data[0] % 4) {
    case 0: check(input, decode_agent_metadata); break;
    case 1: check(input, decode_layer_map); break;
    case 2: check(input, decode_heartbeat); break;
    default: (void)decode_handshake_request(input).ok(); break;
  }
  return 0;
}
