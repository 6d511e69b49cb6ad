#include "cli/replay/rank/hex.h"

#include <charconv>

#include <fmt/format.h>

namespace stagelink::cli::replay {

std::string to_hex(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", std::to_integer<int>(byte));
  return text;
}

Result<std::vector<std::byte>> from_hex(std::string_view text) {
  std::vector<std::byte> bytes(text.size() / 2);
  bool good = text.size() % 2 == 0;
  for (size_t i = 0; good && i < bytes.size(); ++i) {
    uint8_t value = 0;
    const char* const at = text.data() + 2 * i;
    good = std::from_chars(at, at + 2, value, 16).ptr == at + 2;
    bytes[i] = std::byte{value};
  }
  if (!good) {
    return Status(Reason::kFrame, fmt::format("not hex digits: {}", text.substr(0, 40)));
  }
  return bytes;
}

}  // namespace stagelink::cli::replay
