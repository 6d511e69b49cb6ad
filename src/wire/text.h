#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace stagelink::wire {

// A text as it may stand in a message: cut to its bound, control characters replaced by '?'.
std::string printable(std::string_view text, size_t max_bytes);
bool is_control(char c) noexcept;

}  // namespace stagelink::wire
