#include "connector/kv/json_scanner.h"

#include <charconv>

#include <fmt/format.h>

namespace stagelink::kv {
namespace {

bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

void append_utf8(std::string& out, uint32_t code) {
  const auto put = [&out](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xc0 | code >> 6);
  } else {
    if (code < 0x10000) {
      put(0xe0 | code >> 12);
    } else {
      put(0xf0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3f));
    }
    put(0x80 | (code >> 6 & 0x3f));
  }
  put(0x80 | (code & 0x3f));
}

// The bytes of the character that begins at `at`, and its code; 0: that is no UTF-8.
size_t read_utf8(std::string_view text, size_t at, uint32_t& code) noexcept {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[at + i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return code = first, 1;
  const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() - at < bytes) return 0;
  code = first & (0x7fU >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3fU);
  }
  const uint32_t smallest = bytes == 4 ? 0x10000 : bytes == 3 ? 0x800 : 0x80;
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  return code < smallest || code > 0x10ffff || surrogate ? 0 : bytes;
}

}  // namespace

bool JsonScanner::wrong(const char* problem) noexcept {
  if (problem_ == nullptr) problem_ = problem;
  return false;
}

std::string JsonScanner::problem() const {
  if (problem_ == nullptr) return {};
  return fmt::format("{} at byte {}", problem_, at_);
}

void JsonScanner::space() noexcept {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
    ++at_;
  }
}

char JsonScanner::peek() noexcept {
  space();
  if (failed() || at_ == text_.size()) return 0;
  const char c = text_[at_];
  return is_digit(c) || c == '-' || c == 'N' || c == 'I' ? '0' : c;
}

bool JsonScanner::take(char wanted) noexcept {
  space();
  if (failed() || at_ == text_.size() || text_[at_] != wanted) return false;
  ++at_;
  return true;
}

bool JsonScanner::word(std::string_view wanted) noexcept {
  space();
  if (failed() || !text_.substr(at_).starts_with(wanted)) return false;
  at_ += wanted.size();
  return true;
}

bool JsonScanner::open(char bracket) {
  if (!take(bracket)) return wrong(bracket == '{' ? "expected an object" : "expected a list");
  return fresh_ = true;
}

bool JsonScanner::next_key(std::string& key) {
  if (failed()) return false;
  if (take('}')) return fresh_ = false;
  if (!fresh_ && !take(',')) return wrong("expected a comma or the end of an object");
  fresh_ = false;
  if (!string(key)) return false;
  return take(':') || wrong("expected a colon");
}

bool JsonScanner::next_item() {
  if (failed()) return false;
  if (take(']')) return fresh_ = false;
  if (!fresh_ && !take(',')) return wrong("expected a comma or the end of a list");
  fresh_ = false;
  return true;
}

bool JsonScanner::string(std::string& out) {
  out.clear();
  if (!take('"')) return wrong("expected a text");
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c == '"') return ++at_, true;
    if (c == '\\') {
      if (!escape(out)) return false;
      continue;
    }
    if (static_cast<uint8_t>(c) < 0x20) return wrong("a control character in a text");
    uint32_t code = 0;
    const size_t bytes = read_utf8(text_, at_, code);
    if (bytes == 0) return wrong("a text that is no UTF-8");
    out.append(text_.substr(at_, bytes));
    at_ += bytes;
  }
  return wrong("a text without an end");
}

bool JsonScanner::escape(std::string& out) {
  constexpr std::string_view kCodes = "\"\\/bfnrt";
  constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
  if (text_.size() - at_ < 2) return wrong("a text without an end");
  const char code = text_[at_ + 1];
  at_ += 2;
  if (code == 'u') return unicode(out);
  const size_t found = kCodes.find(code);
  if (found == std::string_view::npos) return wrong("an unknown escape");
  out.push_back(kValues[found]);
  return true;
}

bool JsonScanner::unicode(std::string& out) {
  uint32_t code = 0;
  if (!hex4(code)) return false;
  if (code >= 0xd800 && code < 0xdc00) {
    uint32_t low = 0;
    if (!text_.substr(at_).starts_with("\\u")) return wrong("half a surrogate pair");
    at_ += 2;
    if (!hex4(low)) return false;
    if (low < 0xdc00 || low > 0xdfff) return wrong("half a surrogate pair");
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  } else if (code >= 0xdc00 && code < 0xe000) {
    return wrong("half a surrogate pair");
  }
  append_utf8(out, code);
  return true;
}

bool JsonScanner::hex4(uint32_t& out) noexcept {
  if (text_.size() - at_ < 4) return wrong("a text without an end");
  const char* const from = text_.data() + at_;
  const auto [stop, error] = std::from_chars(from, from + 4, out, 16);
  if (error != std::errc() || stop != from + 4) return wrong("an escape that is no number");
  at_ += 4;
  return true;
}

bool JsonScanner::integer(int64_t& out) {
  space();
  const size_t from = at_;
  if (failed() || !number()) return wrong("expected a whole number");
  const std::string_view digits = text_.substr(from, at_ - from);
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out);
  if (error == std::errc() && stop == digits.data() + digits.size()) return true;
  return wrong("expected a whole number of 64 bits");
}

bool JsonScanner::boolean(bool& out) {
  if (word("true")) return out = true;
  out = false;
  return word("false") || wrong("expected true or false");
}

bool JsonScanner::null() { return word("null") || wrong("expected null"); }

bool JsonScanner::number() noexcept {
  if (word("NaN") || word("Infinity") || word("-Infinity")) return true;
  const auto digits = [this] {
    const size_t from = at_;
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    return at_ - from;
  };
  const auto at = [this](char wanted) { return at_ < text_.size() && text_[at_] == wanted; };
  if (at('-')) ++at_;
  const bool zero = at('0');
  const size_t whole = digits();
  if (whole == 0 || (zero && whole > 1)) return false;
  if (at('.')) {
    ++at_;
    if (digits() == 0) return false;
  }
  if (at('e') || at('E')) {
    ++at_;
    if (at('+') || at('-')) ++at_;
    if (digits() == 0) return false;
  }
  return true;
}

bool JsonScanner::skip(std::string_view& raw) {
  space();
  const size_t from = at_;
  if (!value(0)) return false;
  raw = text_.substr(from, at_ - from);
  return true;
}

bool JsonScanner::value(size_t depth) {
  if (depth > kMaxDepth) return wrong("nested too deeply");
  switch (peek()) {
    case '"': return string(scratch_);
    case '{': return members(depth, true);
    case '[': return members(depth, false);
    case 't':
    case 'f': {
      bool ignored = false;
      return boolean(ignored);
    }
    case 'n': return null();
    case '0': return number() || wrong("expected a number");
    default: return wrong("expected a value");
  }
}

// NOLINTNEXTLINE(misc-no-recursion) - kMaxDepth bounds it.
bool JsonScanner::members(size_t depth, bool named) {
  if (named ? !begin_object() : !begin_array()) return false;
  while (named ? next_key(scratch_) : next_item()) {
    if (!value(depth + 1)) return false;
  }
  return !failed();
}

bool JsonScanner::finished() {
  space();
  if (!failed() && at_ < text_.size()) wrong("more than one value");
  return !failed();
}

bool append_json_string(std::string& out, std::string_view text) {
  constexpr std::string_view kPlain = "\"\\\b\f\n\r\t";
  constexpr std::string_view kCodes = "\"\\bfnrt";
  out.push_back('"');
  for (size_t at = 0; at < text.size();) {
    uint32_t code = 0;
    const size_t bytes = read_utf8(text, at, code);
    if (bytes == 0) return false;
    const size_t short_form = kPlain.find(text[at]);
    if (short_form != std::string_view::npos) {
      out.push_back('\\');
      out.push_back(kCodes[short_form]);
    } else if (code >= 0x20 && code < 0x7f) {
      out.push_back(text[at]);
    } else if (code < 0x10000) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", code);
    } else {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}\\u{:04x}",
                     0xd800 + ((code - 0x10000) >> 10), 0xdc00 + ((code - 0x10000) & 0x3ff));
    }
    at += bytes;
  }
  out.push_back('"');
  return true;
}

}  // namespace stagelink::kv
