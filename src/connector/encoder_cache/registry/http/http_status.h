#pragma once

#include <string_view>

namespace stagelink::encoder_cache {

// Of the first line of an answer.
std::string_view status_phrase(int status) noexcept;
// The body of an answer to what could not be read.
std::string_view refusal_text(int status) noexcept;

}  // namespace stagelink::encoder_cache
