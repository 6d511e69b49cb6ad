#pragma once

#include <string_view>

#include "stagelink/status.h"

namespace stagelink {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError, kOff };

// One line to stderr, "time level [name] text". Beyond 20 lines of one `what` in 10 seconds they
// are left out, and a line before the next says how many were. The level comes from
// STAGELINK_LOG_LEVEL (debug info warning error off; default warning).
//
// Thread-safety: all may run at the same time.
void log(LogLevel level, std::string_view what, std::string_view text);
// One line for a failure at its origin: code, reason and message.
void log_failure(std::string_view what, const Status& status);
void set_log_level(LogLevel level) noexcept;
bool log_enabled(LogLevel level) noexcept;

}  // namespace stagelink
