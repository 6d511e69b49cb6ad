#include "cli/doctor/host_view.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

namespace stagelink::cli::doctor {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

// What `python3` starts, in an environment that was activated or not.
std::string usual_python(const std::string& path) {
  const std::string environment_of_python = environment("VIRTUAL_ENV");
  std::string python;
  if (!environment_of_python.empty())
    python = find_program(environment_of_python + "/bin", "python3");
  return python.empty() ? find_program(path, "python3") : python;
}

LocalAddress local_address(const ifaddrs& entry) {
  LocalAddress out;
  const sockaddr& address = *entry.ifa_addr;
  out.interface = entry.ifa_name;
  out.ipv6 = address.sa_family == AF_INET6;
  out.loopback = (entry.ifa_flags & IFF_LOOPBACK) != 0;
  char host[NI_MAXHOST];
  const socklen_t size = out.ipv6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (::getnameinfo(&address, size, host, sizeof host, nullptr, 0, NI_NUMERICHOST) == 0) {
    out.address = host;
  }
  if (out.ipv6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    out.link_local = IN6_IS_ADDR_LINKLOCAL(&six) != 0;
  }
  return out;
}

std::vector<LocalAddress> local_addresses() {
  std::vector<LocalAddress> out;
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return out;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> all(found, &::freeifaddrs);
  for (const ifaddrs* at = found; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0) continue;
    const int family = at->ifa_addr->sa_family;
    if (family == AF_INET || family == AF_INET6) out.push_back(local_address(*at));
  }
  return out;
}

}  // namespace

HostView HostView::of_this_machine() {
  HostView view;
  view.path = environment("PATH");
  view.python = usual_python(view.path);
  view.addresses = local_addresses();
  return view;
}

std::string find_program(std::string_view path, std::string_view name) {
  for (const std::string_view folder : split(path, ':')) {
    std::string program = std::string(folder) + "/" + std::string(name);
    std::error_code error;
    if (fs::is_regular_file(program, error) && ::access(program.c_str(), X_OK) == 0) return program;
  }
  return {};
}

std::optional<std::string> read_text(const std::string& path, size_t max_bytes) {
  std::error_code error;
  if (fs::is_directory(path, error)) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text(max_bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(max_bytes));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

std::optional<uint64_t> read_number(const std::string& path) {
  const auto text = read_text(path, 256);
  if (!text.has_value()) return std::nullopt;
  const std::string_view digits = trimmed(*text);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end == digits.data()) return std::nullopt;
  return value;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

std::string size_text(uint64_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  std::string text = fmt::format("{:.1f}", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text + " " + kUnits[unit];
}

std::string_view trimmed(std::string_view text) noexcept {
  constexpr std::string_view kBlank = " \t\r\n";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    if (end > 0) parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  return parts;
}

}  // namespace stagelink::cli::doctor
