#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "wire/notify_record.h"

// A record lies within the input, and its header encodes to one that decodes to the same record;
// so does an acknowledgement.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stagelink::wire;
  const auto input = std::as_bytes(std::span(data, size));
  if (const auto ack = decode_notify_ack(input); ack.ok()) {
    const auto bytes = encode(*ack);
    if (*decode_notify_ack(bytes) != *ack) std::abort();
  }
  const auto record = decode_notify(input);
  if (!record.ok()) return 0;
  const auto payload = (*record).payload;
  if (kNotifyHeaderBytes + payload.size() > size) std::abort();
  const auto header =
      encode_notify_header((*record).outcome, static_cast<uint32_t>(payload.size()));
  std::vector<std::byte> bytes(header.begin(), header.end());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  const auto again = decode_notify(bytes);
  if (!again.ok() || (*again).outcome != (*record).outcome) std::abort();
  return 0;
}
