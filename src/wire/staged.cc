#include "wire/staged.h"

#include <cstring>

#include "wire/field_reader.h"

namespace stagelink::wire {

std::array<std::byte, kStagedBytes> encode_staged(uint32_t bytes) noexcept {
  std::array<std::byte, kStagedBytes> out;
  std::memcpy(out.data(), &bytes, sizeof bytes);
  return out;
}

Result<uint32_t> decode_staged(std::span<const std::byte> in) {
  FieldReader reader("staged", in);
  const auto bytes = reader.get<uint32_t>("bytes");
  if (bytes == 0) reader.reject("bytes", "is zero", bytes);
  SL_TRY(reader.finish());
  return bytes;
}

}  // namespace stagelink::wire
