#include "connector/encoder_cache/registry/http/request_target.h"

#include <algorithm>
#include <charconv>
#include <chrono>

#include <fmt/format.h>

#include "base/text.h"

namespace stagelink::encoder_cache {
namespace {

constexpr double kMostSeconds = 86'400;
constexpr std::string_view kPlainInPaths = "-._~";

int hex_digit(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

Result<std::string> percent_decode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const bool whole = text.size() - i > 2;
    const int high = whole ? hex_digit(text[i + 1]) : -1;
    const int low = whole ? hex_digit(text[i + 2]) : -1;
    if (high < 0 || low < 0) {
      return Status(
          Reason::kInvalidArgument,
          fmt::format("\"%\" without two hex digits behind it in \"{}\"", to_plain_text(text, 64)));
    }
    out += static_cast<char>(high << 4 | low);
    i += 2;
  }
  return out;
}

Result<Duration> parse_wait(std::string_view text) {
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || end != text.data() + text.size()) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("wait \"{}\" is no number of seconds", to_plain_text(text, 32)));
  }
  return seconds_of(seconds, "wait");
}

}  // namespace

Result<Duration> seconds_of(double seconds, std::string_view field) {
  if (!(seconds >= 0) || seconds > kMostSeconds) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("{} is {} s; 0 to {} can be", field, seconds, kMostSeconds));
  }
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

double to_seconds(Duration duration) noexcept {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(duration).count();
  return static_cast<double>(ms) / 1000;
}

Result<RequestTarget> parse_target(std::string_view target) {
  if (!target.starts_with('/')) {
    return Status(Reason::kInvalidArgument, "the target does not begin with \"/\"");
  }
  RequestTarget found;
  const size_t mark = target.find('?');
  SL_ASSIGN(found.path, percent_decode(target.substr(0, mark)));
  std::string_view query = mark == std::string_view::npos ? "" : target.substr(mark + 1);
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view pair = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    if (!pair.starts_with("wait=")) continue;
    SL_ASSIGN(found.wait, parse_wait(pair.substr(5)));
  }
  return found;
}

std::string percent_encode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       kPlainInPaths.find(c) != std::string_view::npos;
    if (plain) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

}  // namespace stagelink::encoder_cache
