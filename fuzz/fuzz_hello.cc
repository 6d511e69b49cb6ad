#include <cstdint>
#include <cstdlib>
#include <span>

#include "wire/auth.h"
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

// The first byte chooses the message: 0 to 2 modulo 3, and beyond the bit 0x80 those of a secret.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stagelink::wire;
  if (size == 0) return 0;
  const auto input = std::as_bytes(std::span(data + 1, size - 1));
  if (data[0] == 0x80) {
    check(decode_challenge(input), decode_challenge);
    return 0;
  }
  if (data[0] == 0x81) {
    const auto proof = decode_proof(input);
    if (proof.ok() && encode_proof(*proof) != std::vector(input.begin(), input.end())) std::abort();
    return 0;
  }
  switch (data[0] % 3) {
    case 0: check(decode_hello(input), decode_hello); break;
    case 1: check(decode_welcome(input), decode_welcome); break;
    default: check(decode_outcome(input), decode_outcome); break;
  }
  return 0;
}
