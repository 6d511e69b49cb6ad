#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "wire/frame.h"

// A header that the decoder accepts keeps within the bounds of its type and encodes back to the
// same bytes.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stagelink::wire;
  if (size < kFrameHeaderBytes) return 0;
  const auto input = std::as_bytes(std::span(data, size)).first<kFrameHeaderBytes>();
  const auto header = decode_frame_header(input);
  if (!header.ok()) return 0;
  if ((*header).payload_bytes > max_payload_bytes((*header).type)) std::abort();
  if ((*header).fd_count > kMaxFds) std::abort();
  const auto again = encode(*header);
  if (!std::equal(again.begin(), again.end(), input.begin(), input.end())) std::abort();
  return 0;
}
