#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "engine/link/owner_handshake.h"
#include "wire/frame.h"

namespace {

using stagelink::engine::OwnerHandshake;
using stagelink::wire::AuthKey;

AuthKey make_key() {
  return *AuthKey::derive(std::as_bytes(std::span(std::string_view("a key that no input knows"))));
}

}  // namespace

// Whatever a guest sends, in whatever pieces: it is never heard to the end without a proof, and the
// handshake never takes more than one frame of its kind. The first byte: bit 0 asks for a secret,
// the others are the size of the pieces.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const AuthKey key = make_key();
  if (size == 0) return 0;
  const bool secret = (data[0] & 1) != 0;
  const size_t step = 1 + (data[0] >> 1) * size_t{4};
  OwnerHandshake handshake(secret ? &key : nullptr);
  auto rest = std::as_bytes(std::span(data + 1, size - 1));
  while (!rest.empty() && handshake.wanted() > 0) {
    if (handshake.wanted() > stagelink::wire::kMaxControlBytes) std::abort();
    const size_t part = std::min({rest.size(), handshake.wanted(), step});
    const auto answer = handshake.take(rest.first(part));
    if (!answer.ok()) {
      if (answer.status().message().empty() || handshake.done()) std::abort();
      return 0;
    }
    rest = rest.subspan(part);
  }
  if (handshake.done() && (secret || handshake.hello().authenticates)) std::abort();
  return 0;
}
