#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "stagelink/engine_options.h"
#include "stagelink/result.h"

namespace stagelink {

// Values as users write them, the same in files, environment, command line and Python. Every parser
// takes the whole text or fails with invalid_argument and a message that says what is expected.

// "5s", "200ms", "1.5h": a number of at most 9 decimal places and a unit of ns us ms s min h, with
// at most one space between. The unit is never left out, the result is exact and not negative.
Result<Duration> parse_duration(std::string_view text);
// "4096" (bytes), "64KiB", "1GB" (10^9), "1.5GiB": units B, KiB MiB GiB TiB (powers of 1024) and
// KB MB GB TB (powers of 1000). No exponents. At most 2^63 - 1 bytes.
Result<uint64_t> parse_bytes(std::string_view text);
// true false yes no on off, in lower case.
Result<bool> parse_bool(std::string_view text);
// Decimal digits with an optional minus sign; nothing else.
Result<int64_t> parse_integer(std::string_view text);

// In the largest unit that gives a whole number: "500ms", "64KiB", "4097".
std::string format_duration(Duration duration);
std::string format_bytes(uint64_t bytes);

// The name that `text` is most likely meant to be; empty if none is near.
std::string_view nearest_name(std::string_view text, std::span<const std::string_view> names);

// Plain text is UTF-8 without control characters (C0, DEL, C1), line and paragraph separators, byte
// order marks and non-characters: it stays on its line and may stand in any file.
bool is_plain_text(std::string_view text) noexcept;

// Of at most `max_bytes`, cut between two characters; each byte that is not plain becomes '?'.
std::string to_plain_text(std::string_view text, size_t max_bytes);

// Whatever is not plain as \n or, byte by byte, \x1b, so that foreign text stays on its line.
std::string escape_control(std::string_view text);

}  // namespace stagelink
