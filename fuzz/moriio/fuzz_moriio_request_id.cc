#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "connector/moriio/messages/request_id.h"

// A request id or an address that is taken is written back to one that reads the same.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stagelink::moriio;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto address = parse_zmq_address(text); address.ok()) {
    const auto again = parse_zmq_address(to_text(*address));
    if (!again.ok() || !(*again == *address)) std::abort();
  }
  const auto found = parse_request_id(text);
  if (!found.ok()) return 0;
  const auto written = format_request_id(*found, "0123456789abcdef0123456789abcdef");
  if (!written.ok()) std::abort();
  const auto again = parse_request_id(*written);
  if (!again.ok() || !(*again == *found)) std::abort();
  return 0;
}
