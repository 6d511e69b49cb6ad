#include "base/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <numeric>
#include <vector>

#include <fmt/format.h>

namespace stagelink {
namespace {

__extension__ typedef unsigned __int128 Wide;

struct Unit {
  std::string_view name;
  uint64_t factor;
};

constexpr std::array<Unit, 6> kDurationUnits = {{{"ns", 1},
                                                 {"us", 1'000},
                                                 {"ms", 1'000'000},
                                                 {"s", 1'000'000'000},
                                                 {"min", 60'000'000'000},
                                                 {"h", 3'600'000'000'000}}};

constexpr std::array<Unit, 9> kByteUnits = {{{"B", 1},
                                             {"KiB", 1ULL << 10},
                                             {"MiB", 1ULL << 20},
                                             {"GiB", 1ULL << 30},
                                             {"TiB", 1ULL << 40},
                                             {"KB", 1'000},
                                             {"MB", 1'000'000},
                                             {"GB", 1'000'000'000},
                                             {"TB", 1'000'000'000'000}}};

constexpr size_t kMaxDecimals = 9;

bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

// A text cut into "digits[.digits]" and what follows.
struct Quantity {
  uint64_t whole = 0;
  uint64_t fraction = 0;  // Of fraction_scale.
  uint64_t fraction_scale = 1;
  std::string_view unit;
};

std::string quoted(std::string_view text) {
  constexpr size_t kShown = 64;
  return "`" + escape_control(text.substr(0, kShown)) + (text.size() > kShown ? "...`" : "`");
}

std::optional<Quantity> split_quantity(std::string_view text) {
  Quantity out;
  const char* const end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, out.whole);
  if (error != std::errc{}) return std::nullopt;
  std::string_view rest(after, static_cast<size_t>(end - after));
  if (!rest.empty() && rest[0] == '.') {
    rest.remove_prefix(1);
    size_t digits = 0;
    while (digits < rest.size() && is_digit(rest[digits])) {
      out.fraction = out.fraction * 10 + static_cast<uint64_t>(rest[digits] - '0');
      out.fraction_scale *= 10;
      if (++digits > kMaxDecimals) return std::nullopt;
    }
    if (digits == 0) return std::nullopt;
    rest.remove_prefix(digits);
  }
  if (rest.size() > 1 && rest[0] == ' ') rest.remove_prefix(1);
  out.unit = rest;
  return out;
}

// Nothing if the result is not a whole number or above 2^63 - 1.
std::optional<uint64_t> exact_product(const Quantity& quantity, uint64_t factor) noexcept {
  const Wide fraction = static_cast<Wide>(quantity.fraction) * factor;
  if (fraction % quantity.fraction_scale != 0) return std::nullopt;
  const Wide total =
      static_cast<Wide>(quantity.whole) * factor + fraction / quantity.fraction_scale;
  constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (total > kMax) return std::nullopt;
  return static_cast<uint64_t>(total);
}

template <size_t N>
const Unit* find_unit(const std::array<Unit, N>& units, std::string_view name) noexcept {
  const auto found = std::find_if(units.begin(), units.end(),
                                  [name](const Unit& unit) { return unit.name == name; });
  return found == units.end() ? nullptr : &*found;
}

Status bad_value(std::string_view text, std::string_view expected) {
  return Status(Reason::kInvalidArgument, fmt::format("{} is not {}", quoted(text), expected));
}

constexpr std::string_view kDurationForm = "a duration such as 200ms, 5s or 2min";
constexpr std::string_view kBytesForm = "a size such as 4096, 64KiB, 1GiB or 1GB";

// What to say of a unit that is none.
std::string byte_unit_hint(std::string_view unit) {
  if (unit.size() == 1 && std::string_view("KkMmGgTt").find(unit[0]) != std::string_view::npos) {
    const char upper = static_cast<char>(unit[0] & ~0x20);
    return fmt::format(" (write {}iB for powers of 1024 or {}B for powers of 1000)", upper, upper);
  }
  if (!unit.empty() && (unit[0] == 'e' || unit[0] == 'E')) {
    return " (exponents are not taken; write 1GB for 10^9 bytes)";
  }
  return " (units: B KiB MiB GiB TiB KB MB GB TB)";
}

std::string duration_unit_hint(std::string_view unit) {
  if (unit.empty()) return " (a duration needs a unit: ns us ms s min h)";
  if (unit == "m") return " (write min for minutes or ms for milliseconds)";
  return " (units: ns us ms s min h)";
}

template <size_t N>
std::string format_quantity(uint64_t value, const std::array<Unit, N>& units) {
  const Unit* best = units.data();
  for (const Unit& unit : units) {
    if (value != 0 && value % unit.factor == 0 && unit.factor > best->factor) best = &unit;
  }
  return fmt::format("{}{}", value / best->factor, best->name);
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

// The number of bytes of the UTF-8 character that starts with `lead`, and the least code point that
// needs so many; none: no character starts so.
struct Utf8Form {
  size_t size = 0;
  char32_t payload = 0;  // The bits of the lead byte that belong to the code point.
  char32_t least = 0;
};

Utf8Form utf8_form(unsigned char lead) noexcept {
  if (lead < 0x80) return {1, lead, 0};
  if (lead < 0xc0) return {};
  if (lead < 0xe0) return {2, lead & 0x1fU, 0x80};
  if (lead < 0xf0) return {3, lead & 0x0fU, 0x800};
  if (lead < 0xf8) return {4, lead & 0x07U, 0x10000};
  return {};
}

bool is_plain_character(char32_t c) noexcept {
  if (c < 0x20 || (c >= 0x7f && c < 0xa0)) return false;  // C0, DEL, C1 with NEL.
  if (c == 0x2028 || c == 0x2029) return false;           // Line and paragraph separator.
  if (c >= 0xd800 && c <= 0xdfff) return false;           // Surrogates.
  if (c == 0xfeff || (c >= 0xfdd0 && c <= 0xfdef)) return false;
  return (c & 0xfffe) != 0xfffe && c <= 0x10ffff;  // The last two of each plane.
}

// The bytes of the plain character that `text` begins with; 0: it begins with none.
size_t plain_prefix(std::string_view text) noexcept {
  if (text.empty()) return 0;
  const Utf8Form form = utf8_form(static_cast<unsigned char>(text[0]));
  if (form.size == 0 || text.size() < form.size) return 0;
  char32_t character = form.payload;
  for (size_t i = 1; i < form.size; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xc0) != 0x80) return 0;
    character = (character << 6) | (byte & 0x3fU);
  }
  return character >= form.least && is_plain_character(character) ? form.size : 0;
}

}  // namespace

Result<Duration> parse_duration(std::string_view text) {
  const auto quantity = split_quantity(text);
  if (!quantity.has_value()) return bad_value(text, kDurationForm);
  const Unit* unit = find_unit(kDurationUnits, quantity->unit);
  if (unit == nullptr) {
    return bad_value(text, std::string(kDurationForm) + duration_unit_hint(quantity->unit));
  }
  const auto value = exact_product(*quantity, unit->factor);
  if (!value.has_value()) return bad_value(text, "a whole number of nanoseconds below 2^63");
  return Duration(static_cast<int64_t>(*value));
}

Result<uint64_t> parse_bytes(std::string_view text) {
  const auto quantity = split_quantity(text);
  if (!quantity.has_value()) return bad_value(text, kBytesForm);
  const Unit* unit =
      quantity->unit.empty() ? kByteUnits.data() : find_unit(kByteUnits, quantity->unit);
  if (unit == nullptr) {
    return bad_value(text, std::string(kBytesForm) + byte_unit_hint(quantity->unit));
  }
  const auto value = exact_product(*quantity, unit->factor);
  if (!value.has_value()) return bad_value(text, "a whole number of bytes below 2^63");
  return *value;
}

Result<bool> parse_bool(std::string_view text) {
  if (text == "true" || text == "yes" || text == "on") return true;
  if (text == "false" || text == "no" || text == "off") return false;
  return bad_value(text, "one of true, false, yes, no, on, off");
}

Result<int64_t> parse_integer(std::string_view text) {
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range) return bad_value(text, "an integer of 64 bits");
  if (error != std::errc{} || after != end) return bad_value(text, "an integer such as 4096");
  return value;
}

std::string format_duration(Duration duration) {
  const auto ns = duration.count();
  // By unsigned arithmetic, so that the most negative value has a magnitude too.
  const uint64_t magnitude = ns < 0 ? 0 - static_cast<uint64_t>(ns) : static_cast<uint64_t>(ns);
  if (magnitude == 0) return "0s";
  return (ns < 0 ? "-" : "") + format_quantity(magnitude, kDurationUnits);
}

std::string format_bytes(uint64_t bytes) {
  // Powers of 1000 are left out: 64000 reads better than 64KB beside 64KiB.
  constexpr std::array<Unit, 5> kBinary = {
      {{"", 1}, kByteUnits[1], kByteUnits[2], kByteUnits[3], kByteUnits[4]}};
  return format_quantity(bytes, kBinary);
}

std::string_view nearest_name(std::string_view text, std::span<const std::string_view> names) {
  constexpr size_t kLongest = 64;  // Bounds the work; no name is longer.
  if (text.size() > kLongest) return {};
  std::string_view best;
  size_t best_distance = std::max<size_t>(1, text.size() / 3) + 1;
  for (const std::string_view name : names) {
    const size_t distance = edit_distance(text, name);
    if (distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

bool is_plain_text(std::string_view text) noexcept {
  // Most are of these characters alone.
  const auto is_printable_ascii = [](char c) { return c >= 0x20 && c < 0x7f; };
  const auto first = std::find_if_not(text.begin(), text.end(), is_printable_ascii);
  text.remove_prefix(static_cast<size_t>(first - text.begin()));
  while (!text.empty()) {
    const size_t size = plain_prefix(text);
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

std::string to_plain_text(std::string_view text, size_t max_bytes) {
  std::string out;
  while (!text.empty()) {
    const size_t plain = plain_prefix(text);
    const size_t size = std::max<size_t>(plain, 1);
    if (out.size() + size > max_bytes) break;
    out += plain > 0 ? text.substr(0, plain) : "?";
    text.remove_prefix(size);
  }
  return out;
}

std::string escape_control(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t plain = plain_prefix(text);
    if (plain > 0) {
      out += text.substr(0, plain);
    } else if (text[0] == '\n') {
      out += "\\n";
    } else {
      // One byte at a time: what continues a spoilt character begins no other, and is next.
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
    }
    text.remove_prefix(std::max<size_t>(plain, 1));
  }
  return out;
}

}  // namespace stagelink
