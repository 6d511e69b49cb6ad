#include "cli/doctor/ports.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include <fmt/format.h>

#include "engine/bind_address.h"
#include "engine/link/listen_socket.h"

namespace stagelink::cli::doctor {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxTableBytes = 64 << 20;  // Of /proc/net/tcp: about 400,000 connections.
constexpr size_t kMaxCommandBytes = 160;

template <typename T>
std::optional<T> number(std::string_view text, int base = 10) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

struct SocketRow {
  bool listens = false;
  uint32_t uid = 0;
  uint64_t inode = 0;
};

//   0: 0100007F:C383 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000  0 12345 1 ...
std::optional<SocketRow> row_of(std::string_view line, uint16_t port) {
  const auto fields = split(line, ' ');
  if (fields.size() < 10) return std::nullopt;
  const size_t colon = fields[1].rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  if (number<uint16_t>(fields[1].substr(colon + 1), 16) != port) return std::nullopt;
  constexpr std::string_view kListens = "0A";
  constexpr std::string_view kTimeWait = "06";  // Nobody's any more; it does not hold the port.
  if (fields[3] == kTimeWait) return std::nullopt;
  return SocketRow{fields[3] == kListens, number<uint32_t>(fields[7]).value_or(0),
                   number<uint64_t>(fields[9]).value_or(0)};
}

std::optional<SocketRow> find_socket(const std::string& proc, uint16_t port) {
  std::optional<SocketRow> found;
  for (const char* table : {"/net/tcp", "/net/tcp6"}) {
    const auto text = read_text(proc + table, kMaxTableBytes);
    if (!text.has_value()) continue;
    for (const std::string_view line : split(*text, '\n')) {
      const auto row = row_of(line, port);
      if (row.has_value() && row->listens) return row;
      if (row.has_value() && !found.has_value()) found = row;
    }
  }
  return found;
}

// 0: none that this user may look into.
pid_t process_with(const std::string& proc, uint64_t inode) {
  const std::string wanted = fmt::format("socket:[{}]", inode);
  for (const std::string& name : names_in(proc)) {
    const auto pid = number<pid_t>(name);
    if (!pid.has_value()) continue;
    const std::string folder = proc + "/" + name + "/fd";
    for (const std::string& fd : names_in(folder)) {
      std::error_code error;
      if (fs::read_symlink(folder + "/" + fd, error).string() == wanted) return *pid;
    }
  }
  return 0;
}

std::string command_of(const std::string& proc, pid_t pid) {
  auto words = read_text(fmt::format("{}/{}/cmdline", proc, pid), kMaxCommandBytes + 1);
  if (!words.has_value() || words->empty()) return {};
  std::ranges::replace(*words, '\0', ' ');
  const bool cut = words->size() > kMaxCommandBytes;
  return std::string(trimmed(words->substr(0, kMaxCommandBytes))) + (cut ? "..." : "");
}

std::string holder_text(const std::optional<PortHolder>& holder) {
  if (!holder.has_value()) return "a socket that this network namespace does not list";
  const char* const does = holder->listens ? "listens there" : "connects from there";
  if (holder->pid == 0) {
    return fmt::format("a process of uid {} {}; this user may not see which", holder->uid, does);
  }
  return fmt::format("process {} of uid {} {}: {}", holder->pid, holder->uid, does,
                     holder->command.empty() ? "(no command line)" : holder->command);
}

std::string way_out(const std::optional<PortHolder>& holder) {
  std::string out = "choose another port, or 0 for any free one.";
  if (!holder.has_value()) return "Wait a minute, or " + out;
  if (holder->pid == 0) {
    return "As root, `ss -ltnp` names it. Else " + out;
  }
  return fmt::format("If it is a left-over, end it: kill {}. Else {}", holder->pid, out);
}

Finding held(const HostView& host, const ListenPlace& place) {
  const auto holder = holder_of(host.proc, place.port);
  return {Level::kError, "port_held",
          fmt::format("{}: port {} is held: {}", place.who, place.port, holder_text(holder)),
          "The process that wants it fails at start with port_in_use.", way_out(holder)};
}

// Empty if the port can be bound, or if its address cannot, which is told elsewhere.
std::optional<Finding> try_port(const HostView& host, const ListenPlace& place) {
  EngineOptions options;
  options.bind = Endpoint{place.host, place.port}.to_string();
  options.interface = place.interface;
  const auto address = engine::bind_address(options);
  if (!address.ok()) return std::nullopt;
  Endpoint bound;
  const auto socket = engine::listen_tcp_socket(*address, bound);
  if (socket.ok()) return std::nullopt;
  if (socket.status().reason() == Reason::kPortInUse) return held(host, place);
  if (socket.status().code() == Code::kInvalidArgument) return std::nullopt;
  return Finding{Level::kError, std::string(reason_name(socket.status().reason())),
                 fmt::format("{}: {}", place.who, socket.status().message()),
                 "The process that wants the port fails at start.",
                 "Ports below net.ipv4.ip_unprivileged_port_start (1024) are for root: choose a "
                 "higher one."};
}

bool is_reserved(std::string_view list, uint16_t port) {
  for (const std::string_view part : split(trimmed(list), ',')) {
    const size_t dash = part.find('-');
    const auto first = number<uint16_t>(part.substr(0, dash));
    const auto last =
        dash == std::string_view::npos ? first : number<uint16_t>(part.substr(dash + 1));
    if (first.has_value() && last.has_value() && *first <= port && port <= *last) return true;
  }
  return false;
}

// Ports that the kernel may give to any outgoing connection.
std::optional<Finding> check_range(const HostView& host, const std::vector<uint16_t>& ports) {
  const std::string folder = host.proc + "/sys/net/ipv4/";
  const auto range = read_text(folder + "ip_local_port_range", 64);
  if (!range.has_value()) return std::nullopt;
  std::string line(trimmed(*range));
  std::ranges::replace(line, '\t', ' ');
  const auto bounds = split(line, ' ');
  if (bounds.size() != 2) return std::nullopt;
  const uint16_t first = number<uint16_t>(bounds[0]).value_or(0);
  const uint16_t last = number<uint16_t>(bounds[1]).value_or(0);
  const std::string reserved = read_text(folder + "ip_local_reserved_ports").value_or("");
  std::vector<uint16_t> inside;
  for (const uint16_t port : ports) {
    if (first <= port && port <= last && !is_reserved(reserved, port)) inside.push_back(port);
  }
  if (inside.empty()) return std::nullopt;
  const bool one = inside.size() == 1;
  const std::string which =
      one ? fmt::format("Port {} lies", inside.front())
          : fmt::format("{} ports from {} on lie", inside.size(), inside.front());
  return note("port_may_be_taken",
              fmt::format("{} in {}-{}, from where the kernel takes the ports of outgoing "
                          "connections: any program may have {} at the next start.",
                          which, first, last, one ? "it" : "one of them"),
              fmt::format("sysctl net.ipv4.ip_local_reserved_ports={}", fmt::join(inside, ",")));
}

}  // namespace

std::optional<PortHolder> holder_of(const std::string& proc, uint16_t port) {
  const auto socket = find_socket(proc, port);
  if (!socket.has_value()) return std::nullopt;
  PortHolder holder{socket->listens, socket->uid, 0, {}};
  if (socket->inode != 0) holder.pid = process_with(proc, socket->inode);
  if (holder.pid != 0) holder.command = command_of(proc, holder.pid);
  return holder;
}

std::vector<Finding> check_ports(const HostView& host, const Subject& subject) {
  std::vector<Finding> out;
  std::vector<uint16_t> free;
  std::vector<uint16_t> all;
  for (const ListenPlace& place : subject.listens) {
    if (place.port == 0) continue;
    all.push_back(place.port);
    if (auto finding = try_port(host, place); finding.has_value()) {
      out.push_back(*std::move(finding));
    } else {
      free.push_back(place.port);
    }
  }
  if (all.empty()) {
    out.push_back(fine("No fixed port is asked for: listeners take any free one."));
    return out;
  }
  if (!free.empty()) {
    out.push_back(fine(fmt::format("Free: {}.", fmt::join(free, ", "))));
  }
  if (auto finding = check_range(host, all); finding.has_value()) out.push_back(*finding);
  return out;
}

}  // namespace stagelink::cli::doctor
