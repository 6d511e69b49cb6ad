#include <cstdint>
#include <cstdlib>
#include <span>

#include "connector/moriio/messages/notify_message.h"

// Every message that comes to a notify port. What is decoded encodes again, to the same message but
// for a version that it need not have named.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stagelink::moriio;
  const auto message = decode_notify_message(std::as_bytes(std::span(data, size)));
  if (!message.ok()) {
    if (message.status().message().empty()) std::abort();
    return 0;
  }
  if (transfer_id(*message).empty()) std::abort();
  const auto bytes = encode(*message);
  if (!bytes.ok()) std::abort();
  const auto again = decode_notify_message(*bytes);
  if (!again.ok() || !(*again == *message)) std::abort();
  return 0;
}
