#include "cli/doctor/npu.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include <fmt/format.h>

#include "base/text.h"
#include "cli/doctor/child.h"

namespace stagelink::cli::doctor {
namespace {

constexpr int kMaxNpu = 1023;
constexpr int kUsualNpus = 8;  // Of one host, where /dev does not tell.
constexpr const char* kWhyAddress =
    "Ascend P2P goes over the NPUs' own network: without an IPv4 address of each device a transfer "
    "ends with `IPv4 device IP not found`.";
constexpr const char* kWhyPath =
    "The P2P connection between the two NPUs cannot be set up: `P2PCommInitRootInfo failed`, `ra "
    "init failed`, `RA_QP_STATUS_TIMEOUT`.";

// What stands behind `label` on the first line that has it.
std::string value_behind(std::string_view text, std::string_view label) {
  const size_t at = text.find(label);
  if (at == std::string_view::npos) return {};
  text.remove_prefix(at + label.size());
  return std::string(trimmed(text.substr(0, text.find('\n'))));
}

// For messages: one line of what a tool has printed.
std::string said(std::string_view text) {
  const std::string_view line = trimmed(text.substr(0, trimmed(text).find('\n')));
  return line.empty() ? "it printed nothing" : to_plain_text(line, 200);
}

bool is_ipv4(std::string_view text) {
  const auto parts = split(text, '.');
  if (parts.size() != 4 || text.find("..") != std::string_view::npos) return false;
  return std::ranges::all_of(parts, [](std::string_view part) {
    int value = -1;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    return error == std::errc() && end == part.data() + part.size() && value >= 0 && value <= 255;
  });
}

std::string find_hccn_tool(const HostView& host) {
  std::string tool = find_program(host.path, "hccn_tool");
  if (tool.empty()) tool = find_program(host.ascend + "/driver/tools", "hccn_tool");
  return tool;
}

std::vector<int> devices_of(const HostView& host) {
  constexpr std::string_view kPrefix = "davinci";
  std::vector<int> out;
  for (const std::string& name : names_in(host.dev)) {
    if (!name.starts_with(kPrefix)) continue;
    const auto number = parse_integer(std::string_view(name).substr(kPrefix.size()));
    if (number.ok() && *number >= 0 && *number <= kMaxNpu) out.push_back(static_cast<int>(*number));
  }
  std::ranges::sort(out);
  return out;
}

// Asks hccn_tool about one NPU after the other.
class NpuCheck {
 public:
  NpuCheck(std::string tool, const NpuRequest& request)
      : tool_(std::move(tool)), request_(request), end_(Deadline::in(request.total_timeout)) {}

  std::vector<Finding> run(const std::vector<int>& ids) {
    for (const int id : ids) {
      if (out_of_time()) return std::move(out_);
      look_at(id);
    }
    ping_all();
    return std::move(out_);
  }

 private:
  struct Address {
    int id;
    std::string address;
  };

  bool out_of_time() {
    if (!end_.passed()) return false;
    out_.push_back({Level::kWarning, "npu_not_all",
                    fmt::format("After {} not all NPUs were looked at",
                                format_duration(request_.total_timeout)),
                    "What was not looked at may be broken.",
                    "Name fewer of them: --npu 0-3, --npu-peer 10.0.0.1"});
    return true;
  }

  // Nothing if there was no answer, which is then reported.
  std::optional<std::string> ask(int id, const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {tool_, "-i", std::to_string(id)};
    command.insert(command.end(), arguments.begin(), arguments.end());
    auto output =
        run_program(command, Deadline::earlier(end_, Deadline::in(request_.step_timeout)));
    if (output.ok()) return std::move(output->text);
    out_.push_back({Level::kError, "npu_tool",
                    fmt::format("NPU {}: {}", id, output.status().message()),
                    "A driver that does not answer moves no data either.",
                    "npu-smi info; dmesg; as the user that runs the model, and in its container."});
    return std::nullopt;
  }

  void look_at(int id) {
    const auto address = ask(id, {"-ip", "-g"});
    if (!address.has_value()) return;
    const std::string ip = value_behind(*address, "ipaddr:");
    const bool usable = is_ipv4(ip);
    if (!usable) report_address(id, ip, *address);
    const bool link = check_word(id, {"-link", "-g"}, "link status:", "UP");
    const bool health = check_word(id, {"-net_health", "-g"}, "net health status:", "Success");
    if (!usable) return;
    addresses_.push_back({id, ip});
    if (link && health) {
      out_.push_back(fine(fmt::format("NPU {}: {}, link UP, network health Success", id, ip)));
    }
  }

  void report_address(int id, const std::string& ip, const std::string& text) {
    if (ip.find(':') != std::string::npos) {
      out_.push_back({Level::kError, "npu_ipv6_only",
                      fmt::format("NPU {}: its device address is IPv6 ({})", id, ip), kWhyAddress,
                      fmt::format("Give it an IPv4 address: hccn_tool -i {} -ip -s address A.B.C.D "
                                  "netmask M; or make sure that the installed transfer engine can "
                                  "do IPv6 there.",
                                  id)});
      return;
    }
    out_.push_back({Level::kError, "npu_no_ipv4",
                    fmt::format("NPU {}: no IPv4 device address (hccn_tool: {})", id, said(text)),
                    kWhyAddress,
                    fmt::format("hccn_tool -i {} -ip -s address A.B.C.D netmask M, on every NPU "
                                "that takes part.",
                                id)});
  }

  bool check_word(int id, const std::vector<std::string>& arguments, std::string_view label,
                  std::string_view good) {
    const auto text = ask(id, arguments);
    if (!text.has_value()) return false;
    const std::string word = value_behind(*text, label);
    if (word == good) return true;
    const bool is_link = good == "UP";
    out_.push_back({Level::kError, is_link ? "npu_link_down" : "npu_unhealthy",
                    fmt::format("NPU {}: {} {}", id, label, word.empty() ? said(*text) : word),
                    kWhyPath,
                    is_link ? "Look at the cable and at the switch's port."
                            : "Look at the address of the health check (hccn_tool -netdetect), the "
                              "gateway and the switch."});
    return false;
  }

  void ping_all() {
    std::vector<std::string> targets = request_.targets;
    if (targets.empty()) {
      for (const Address& address : addresses_) targets.push_back(address.address);
    }
    size_t good = 0;
    for (const Address& from : addresses_) {
      for (const std::string& target : targets) {
        if (from.address == target) continue;
        if (out_of_time()) return;
        if (ping(from.id, target)) ++good;
      }
    }
    if (good > 0) {
      out_.push_back(fine(fmt::format("{} between NPUs without loss", counted(good, "ping"))));
    }
  }

  bool ping(int id, const std::string& target) {
    const auto text = ask(id, {"-ping", "-g", "address", target});
    if (!text.has_value()) return false;
    const size_t mark = text->find("% packet loss");
    const size_t begin =
        mark == std::string::npos ? mark : text->find_last_not_of("0123456789.", mark - 1);
    const std::string loss =
        mark == std::string::npos ? "" : text->substr(begin + 1, mark - begin - 1);
    // "0.00"
    if (!loss.empty() && loss.find_first_not_of("0.") == std::string::npos) return true;
    out_.push_back(
        {Level::kError, "npu_ping_lost",
         fmt::format("NPU {} -> {}: {}", id, target,
                     loss.empty() ? "no ping (" + said(*text) + ")" : loss + "% packet loss"),
         kWhyPath,
         "Mend the device network first (addresses in one network or a gateway, VLAN, switch). If "
         "pings pass and transfers still fail, try a minimal pair of the transfer engine."});
    return false;
  }

  const std::string tool_;
  const NpuRequest& request_;
  const Deadline end_;
  std::vector<Address> addresses_;
  std::vector<Finding> out_;
};

Finding missing_for(const std::string& edge) {
  return {Level::kError, "npu_missing",
          fmt::format("{}: protocol ascend, and there is no NPU here", edge),
          "Ascend P2P moves data between NPUs only.",
          "Run this where the NPUs are (in the container of the model), or choose protocol: auto "
          "with memory_pool_device: cpu."};
}

}  // namespace

Result<std::vector<int>> parse_npu_ids(std::string_view text) {
  std::vector<int> out;
  for (const std::string_view part : split(text, ',')) {
    const size_t dash = part.find('-');
    const auto first = parse_integer(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : parse_integer(part.substr(dash + 1));
    if (!first.ok() || !last.ok() || *first < 0 || *last < *first || *last > kMaxNpu) {
      return Status(Reason::kInvalidArgument,
                    fmt::format("`{}`: expected ids of NPUs such as 0-3,6", text));
    }
    for (int64_t id = *first; id <= *last; ++id) out.push_back(static_cast<int>(id));
  }
  if (out.empty()) return Status(Reason::kInvalidArgument, "expected ids of NPUs such as 0-3,6");
  return out;
}

std::vector<Finding> check_npu(const HostView& host, const Subject& subject,
                               const NpuRequest& request) {
  std::vector<Finding> out;
  const std::string tool = find_hccn_tool(host);
  std::vector<int> ids = request.ids.empty() ? devices_of(host) : request.ids;
  const bool npu = !ids.empty() || !tool.empty();
  if (!npu) {
    for (const std::string& edge : subject.ascend) out.push_back(missing_for(edge));
    if (out.empty()) {
      out.push_back(note(
          "npu_none", "There is no Ascend NPU here (no " + host.dev + "/davinci*, no hccn_tool)."));
    }
    return out;
  }
  if (tool.empty()) {
    out.push_back({Level::kError, "npu_no_tool",
                   fmt::format("{} here, but no hccn_tool", counted(ids.size(), "NPU")),
                   "Nothing can say whether their network is set up.",
                   "It is part of the Ascend driver (" + host.ascend +
                       "/driver/tools): mount that folder into the container."});
    return out;
  }
  for (int id = 0; ids.size() < kUsualNpus && request.ids.empty() && devices_of(host).empty();
       ++id) {
    ids.push_back(id);
  }
  std::vector<Finding> seen = NpuCheck(tool, request).run(ids);
  std::ranges::move(seen, std::back_inserter(out));
  return out;
}

}  // namespace stagelink::cli::doctor
