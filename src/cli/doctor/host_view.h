#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stagelink::cli::doctor {

// One address of one interface that is up.
struct LocalAddress {
  std::string interface;
  std::string address;  // Numeric, link-local ones with their scope.
  bool ipv6 = false;
  bool loopback = false;
  bool link_local = false;
};

// Where the checks look. Tests point it at trees of their own.
struct HostView {
  std::string proc = "/proc";
  std::string sys = "/sys";
  std::string dev = "/dev";
  std::string ascend = "/usr/local/Ascend";
  std::string shm = "/dev/shm";
  std::string path;           // Of programs, as in $PATH.
  std::string python;         // The interpreter whose packages count; empty: none.
  bool python_asked = false;  // It was named by the user.
  std::vector<LocalAddress> addresses;

  static HostView of_this_machine();
};

// The first program of that name in `path`; empty: none.
std::string find_program(std::string_view path, std::string_view name);

// At most `max_bytes` of a file that may be one of /proc; nothing if it cannot be read.
std::optional<std::string> read_text(const std::string& path, size_t max_bytes = 1 << 20);
// The first number in a file.
std::optional<uint64_t> read_number(const std::string& path);
// The names in a folder, sorted; none if it cannot be read.
std::vector<std::string> names_in(const std::string& folder);

// "1.5 GiB", "64 MiB", "300 B".
std::string size_text(uint64_t bytes);
// Without blanks and newlines around it.
std::string_view trimmed(std::string_view text) noexcept;
// The parts between separators, empty ones left out.
std::vector<std::string_view> split(std::string_view text, char separator);

}  // namespace stagelink::cli::doctor
