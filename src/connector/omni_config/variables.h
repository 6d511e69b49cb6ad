#pragma once

#include <string>
#include <string_view>

#include "stagelink/result.h"

namespace stagelink::omni {

// A text that is `$NAME` or `${NAME}` as a whole stands for that environment variable; any other
// for itself. Errors: invalid_argument names a variable that is not set.
Result<std::string> expand_variable(std::string_view text);

}  // namespace stagelink::omni
