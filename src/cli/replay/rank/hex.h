#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stagelink/result.h"

namespace stagelink::cli::replay {

std::string to_hex(std::span<const std::byte> bytes);
// Errors: corrupt (frame).
Result<std::vector<std::byte>> from_hex(std::string_view text);

}  // namespace stagelink::cli::replay
