#include <cstdint>
#include <cstdlib>
#include <span>

#include "mended_blob.h"
#include "wire/engine_desc.h"

// A descriptor of our own minor encodes back to the same bytes; one of the next minor may have more
// fields, which are left out.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stagelink::wire;
  const auto raw = std::as_bytes(std::span(data, size));
  (void)decode_engine_desc(raw).ok();
  const auto input = mended_blob(raw);
  const auto desc = decode_engine_desc(input);
  if (!desc.ok()) return 0;
  const auto again = encode(*desc);
  if ((*desc).version.minor <= own_version().minor) {
    if (again != input) std::abort();
  } else if (const auto twice = decode_engine_desc(again); !twice.ok() || !(*twice == *desc)) {
    std::abort();
  }
  return 0;
}
