#include "connector/moriio/messages/request_id.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/text.h"
#include "connector/moriio/messages/message_fields.h"

namespace stagelink::moriio {
namespace {

constexpr std::string_view kPrefill = "___prefill_addr_";
constexpr std::string_view kDecode = "___decode_addr_";
constexpr size_t kUniqueDigits = 32;
constexpr size_t kMaxHostBytes = 255;

bool is_hex(std::string_view text) noexcept {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

Status wrong(std::string_view text, std::string_view why) {
  return Status(Reason::kInvalidArgument,
                fmt::format("ZMQ address `{}`: {}", to_plain_text(text, 200), why));
}

Status parse_port(std::string_view text, std::string_view key, std::string_view value,
                  uint16_t& out) {
  const auto number = parse_integer(value);
  if (!number.ok() || *number < 1 || *number > 65535) {
    return wrong(text, fmt::format("key `{}` is `{}`, no port within 1 to 65535", key,
                                   to_plain_text(value, 40)));
  }
  out = static_cast<uint16_t>(*number);
  return {};
}

bool is_host(std::string_view host) noexcept {
  return !host.empty() && host.size() <= kMaxHostBytes &&
         std::all_of(host.begin(), host.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  c == '.' || c == '-' || c == ':' || c == '_' || c == '%';
         });
}

// "..._{32 hex}" or "..._{32 hex}-...", taking the last place where that fits, so that an address
// never loses a part that looks alike. Empty: there is none.
std::string_view before_unique(std::string_view text) noexcept {
  for (size_t at = text.size(); at-- > 0;) {
    if (text[at] != '_') continue;
    const std::string_view rest = text.substr(at + 1);
    if (rest.size() < kUniqueDigits || !is_hex(rest.substr(0, kUniqueDigits))) continue;
    if (rest.size() == kUniqueDigits || rest[kUniqueDigits] == '-') return text.substr(0, at);
  }
  return {};
}

std::string_view trimmed(std::string_view text) noexcept {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

}  // namespace

Result<ZmqAddress> parse_zmq_address(std::string_view text) {
  ZmqAddress out;
  std::array<bool, 3> seen{};
  constexpr std::array<std::string_view, 3> kKeys = {"host", "handshake", "notify"};
  if (text.size() > kMaxIdBytes) return wrong(text, "it is too long");
  for (std::string_view left = text; !left.empty();) {
    const size_t comma = std::min(left.find(','), left.size());
    const std::string_view part = left.substr(0, comma);
    left.remove_prefix(std::min(comma + 1, left.size()));
    const size_t colon = part.find(':');
    if (colon == std::string_view::npos) {
      return wrong(text, fmt::format("`{}` is no key:value", to_plain_text(part, 80)));
    }
    const auto found = std::find(kKeys.begin(), kKeys.end(), trimmed(part.substr(0, colon)));
    if (found == kKeys.end()) continue;
    const auto index = static_cast<size_t>(found - kKeys.begin());
    if (seen[index]) return wrong(text, fmt::format("key `{}` is given twice", *found));
    seen[index] = true;
    const std::string_view value = trimmed(part.substr(colon + 1));
    if (index == 1) SL_TRY(parse_port(text, *found, value, out.handshake_port));
    if (index == 2) SL_TRY(parse_port(text, *found, value, out.notify_port));
    if (index != 0) continue;
    if (!is_host(value)) return wrong(text, "key `host` is no address or name");
    out.host = value;
  }
  for (size_t i = 0; i < kKeys.size(); ++i) {
    if (!seen[i]) return wrong(text, fmt::format("key `{}` is missing", kKeys[i]));
  }
  return out;
}

std::string to_text(const ZmqAddress& address) {
  return fmt::format("host:{},handshake:{},notify:{}", address.host, address.handshake_port,
                     address.notify_port);
}

Result<RequestAddresses> parse_request_id(std::string_view request_id) {
  if (request_id.size() > kMaxIdBytes) {
    return Status(Reason::kTooLarge, fmt::format("request id of {} bytes, the limit is {}",
                                                 request_id.size(), kMaxIdBytes));
  }
  const size_t prefill = request_id.find(kPrefill);
  const size_t first = prefill == std::string_view::npos ? prefill : prefill + kPrefill.size();
  const size_t decode = first == std::string_view::npos ? first : request_id.find(kDecode, first);
  const std::string_view last = decode == std::string_view::npos
                                    ? std::string_view{}
                                    : before_unique(request_id.substr(decode + kDecode.size()));
  if (last.empty()) {
    return Status(Reason::kNotFound, fmt::format("request id `{}` holds no addresses",
                                                 to_plain_text(request_id, 200)));
  }
  RequestAddresses out;
  SL_ASSIGN(out.prefill, parse_zmq_address(request_id.substr(first, decode - first)));
  SL_ASSIGN(out.decode, parse_zmq_address(last));
  return out;
}

Result<std::string> format_request_id(const RequestAddresses& addresses, std::string_view unique) {
  if (unique.size() != kUniqueDigits || !is_hex(unique)) {
    return Status(Reason::kInvalidArgument, "a request id ends in 32 lower-case hex digits");
  }
  std::string out = fmt::format("{}{}{}{}_{}", kPrefill, to_text(addresses.prefill), kDecode,
                                to_text(addresses.decode), unique);
  SL_ASSIGN(const RequestAddresses again, parse_request_id(out));
  if (!(again == addresses)) {
    return Status(Reason::kInvalidArgument, "an address that does not fit into a request id");
  }
  return out;
}

std::string zmq_endpoint(std::string_view host, uint16_t port) {
  const bool bare = host.find(':') != std::string_view::npos && host.front() != '[';
  return fmt::format("tcp://{}{}{}:{}", bare ? "[" : "", host, bare ? "]" : "", port);
}

}  // namespace stagelink::moriio
