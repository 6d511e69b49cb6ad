#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "stagelink/engine_options.h"
#include "stagelink/result.h"

namespace stagelink::encoder_cache {

// What stands behind the method of a request: "/ec/info/a%20b?wait=2.5".
struct RequestTarget {
  std::string path;              // Decoded.
  std::optional<Duration> wait;  // Of the query; what else is in it is left alone.
};

// Errors: invalid_argument: does not begin with "/", "%" without two hex digits, a wait that is no
// number of seconds.
Result<RequestTarget> parse_target(std::string_view target);

// As one segment of a path: everything but letters, digits and "-._~" becomes %XX.
std::string percent_encode(std::string_view text);

// Seconds as messages have them: 0 to a day, with a fraction. Errors: invalid_argument.
Result<Duration> seconds_of(double seconds, std::string_view field);
// With millisecond precision.
double to_seconds(Duration duration) noexcept;

}  // namespace stagelink::encoder_cache
