#include <cstdint>
#include <cstdlib>
#include <span>

#include "wire/hello.h"

namespace {

// A sender with a newer minor may append fields that we do not keep, and an unknown reason becomes
// a known one; so what must hold is that a decoded value survives its own encoding.
template <typename T>
void check(const stagelink::Result<T>& decoded,
           stagelink::Result<T> (*decode)(std::span<const std::byte>)) {
  if (!decoded.ok()) {
    if (decoded.status().message().empty()) std::abort();
    return;
  }
  const auto again = decode(stagelink::wire::encode(*decoded));
  if (!again.ok() || !(*again == *decoded)) std::abort();
}

}  // namespace

// The first byte chooses the message.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stagelink::wire;
  if (size == 0) return 0;
  const auto input = std::as_bytes(std::span(data + 1, size - 1));
  switch (data[0] % 3) {
    case 0: check(decode_hello(input), decode_hello); break;
    case 1: check(decode_welcome(input), decode_welcome); break;
    default: check(decode_outcome(input), decode_outcome); break;
  }
  return 0;
}
