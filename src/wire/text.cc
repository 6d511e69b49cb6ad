#include "wire/text.h"

#include <algorithm>

namespace stagelink::wire {

std::string printable(std::string_view text, size_t max_bytes) {
  std::string out(text.substr(0, max_bytes));
  std::replace_if(out.begin(), out.end(), is_control, '?');
  return out;
}

bool is_control(char c) noexcept {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7f;
}

}  // namespace stagelink::wire
