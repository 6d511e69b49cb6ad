#include "base/endpoint.h"

#include <array>
#include <charconv>

#include <arpa/inet.h>
#include <netinet/in.h>

namespace stagelink {
namespace {

Status bad(std::string_view text, const char* why) {
  return Status(Reason::kInvalidArgument, "address \"" + std::string(text) + "\": " + why +
                                              "; write host:port or [ipv6]:port");
}

}  // namespace

std::string Endpoint::to_string() const {
  const bool brackets = host.find(':') != std::string::npos;
  return (brackets ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

// In any spelling that the system takes, such as "0", "0x0", "::0" and "::ffff:0.0.0.0".
bool Endpoint::wildcard() const noexcept {
  if (host.empty() || host == "*") return true;
  std::array<char, INET6_ADDRSTRLEN> text = {};
  const std::string_view address = std::string_view(host).substr(0, host.find('%'));
  if (address.size() >= text.size()) return false;
  address.copy(text.data(), address.size());
  in_addr ipv4 = {};
  if (::inet_aton(text.data(), &ipv4) != 0) return ipv4.s_addr == INADDR_ANY;
  in6_addr ipv6 = {};
  if (::inet_pton(AF_INET6, text.data(), &ipv6) != 1) return false;
  if (IN6_IS_ADDR_V4MAPPED(&ipv6)) return ipv6.s6_addr32[3] == INADDR_ANY;
  return IN6_IS_ADDR_UNSPECIFIED(&ipv6);
}

Result<Endpoint> parse_endpoint(std::string_view text) {
  std::string_view host;
  std::string_view port;
  if (text.find("://") != std::string_view::npos) {
    return bad(text, "a scheme such as http:// is not a part of it");
  }
  if (text.starts_with('[')) {
    const size_t close = text.find(']');
    if (close == std::string_view::npos) return bad(text, "the bracket is not closed");
    host = text.substr(1, close - 1);
    const std::string_view rest = text.substr(close + 1);
    if (!rest.starts_with(':')) return bad(text, "there is no port after the bracket");
    port = rest.substr(1);
    if (host.find(':') == std::string_view::npos) return bad(text, "no IPv6 address in brackets");
  } else {
    const size_t colon = text.rfind(':');
    if (colon == std::string_view::npos) return bad(text, "there is no port");
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (host.find(':') != std::string_view::npos) {
      return bad(text, "an IPv6 address without brackets is ambiguous");
    }
  }
  if (host.empty()) return bad(text, "the host is empty");
  unsigned value = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), value);
  if (error != std::errc() || end != port.data() + port.size() || value > 65535) {
    return bad(text, "the port is not a number from 0 to 65535");
  }
  return Endpoint{std::string(host), static_cast<uint16_t>(value)};
}

}  // namespace stagelink
