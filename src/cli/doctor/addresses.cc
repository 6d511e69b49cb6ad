#include "cli/doctor/addresses.h"

#include <algorithm>
#include <future>
#include <memory>
#include <thread>
#include <tuple>

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>

#include "base/endpoint.h"
#include "engine/advertised_address.h"
#include "engine/bind_address.h"
#include "engine/link/listen_socket.h"

namespace stagelink::cli::doctor {
namespace {

constexpr auto kLookupTime = std::chrono::seconds(5);
// Stands in for a port that is not known yet.
constexpr uint16_t kSomePort = 1;

std::vector<std::string> look_up_now(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(found, &::freeaddrinfo);
  std::vector<std::string> out;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    char text[NI_MAXHOST];
    if (::getnameinfo(at->ai_addr, at->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) ==
        0) {
      out.emplace_back(text);
    }
  }
  return out;
}

// The resolver takes no deadline: a look-up that outlasts it is left to itself.
std::vector<std::string> addresses_of(const std::string& host) {
  std::packaged_task<std::vector<std::string>()> task([host] { return look_up_now(host); });
  auto answer = task.get_future();
  std::thread(std::move(task)).detach();
  if (answer.wait_for(kLookupTime) != std::future_status::ready) return {};
  return answer.get();
}

const LocalAddress* find_local(const HostView& host, const std::string& address) {
  for (const LocalAddress& local : host.addresses) {
    if (local.address == address) return &local;
  }
  return nullptr;
}

// All of 127.0.0.0/8 is this machine's, whatever the interfaces name.
bool is_loopback(const HostView& host, const std::string& address) {
  if (address.starts_with("127.")) return true;
  const LocalAddress* const local = find_local(host, address);
  return local != nullptr && local->loopback;
}

// "eth0 10.0.0.5, fd00::5; lo 127.0.0.1, ::1"
std::string list_of(const HostView& host, bool loopback_too) {
  std::vector<std::pair<std::string, std::string>> interfaces;  // Those with loopback last.
  for (const bool loopback : {false, true}) {
    for (const LocalAddress& local : host.addresses) {
      if (local.loopback != loopback || (loopback && !loopback_too)) continue;
      const auto known = std::ranges::find(interfaces, local.interface,
                                           &std::pair<std::string, std::string>::first);
      if (known == interfaces.end()) {
        interfaces.emplace_back(local.interface, local.interface + " " + local.address);
      } else {
        known->second += ", " + local.address;
      }
    }
  }
  std::string out;
  for (const auto& [name, text] : interfaces) out += (out.empty() ? "" : "; ") + text;
  return out.empty() ? "none" : out;
}

Finding describe_machine(const HostView& host) {
  bool ipv4 = false;
  bool ipv6 = false;
  for (const LocalAddress& local : host.addresses) {
    if (local.loopback || local.link_local) continue;
    (local.ipv6 ? ipv6 : ipv4) = true;
  }
  const std::string what = "This machine has: " + list_of(host, true) + ".";
  if (ipv4) return fine(what);
  if (ipv6) {
    return note("ipv6_only", what + " It has no IPv4 address but loopback.",
                "Write IPv6 addresses in brackets, [fd00::5]:5000. What speaks IPv4 alone (the "
                "device network of NPUs, older peers) does not reach it.");
  }
  return note("no_network", what + " It has no address that other hosts reach.",
              "Nothing, if all processes run on this host; else its network has to be set up.");
}

// Judges one place to listen and what its peers are told.
class PlaceCheck {
 public:
  PlaceCheck(const HostView& host, const ListenPlace& place, std::vector<Finding>& out)
      : host_(host), place_(place), out_(out) {}

  void run() {
    EngineOptions options;
    options.bind = Endpoint{place_.host, place_.port}.to_string();
    options.interface = place_.interface;
    auto bound = engine::bind_address(options);
    if (!bound.ok()) return report_interface(bound.status());
    bound_ = *std::move(bound);
    if (bound_.wildcard()) return check_wildcard(options);
    if (!check_local()) return;
    check_kind();
    check_advertised(options);
  }

 private:
  void report_interface(const Status& why) {
    out_.push_back({Level::kError, "interface", fmt::format("{}: {}", place_.who, why.message()),
                    "Without an address nothing can listen, and the process fails at start.",
                    "This machine has: " + list_of(host_, true) +
                        ". Name one of these interfaces, or an address in place of auto."});
  }

  void check_wildcard(EngineOptions& options) {
    if (place_.advertise.empty()) {
      out_.push_back({Level::kError, "wildcard_told",
                      fmt::format("{}: {} is every address at once, and peers would be told it",
                                  place_.who, place_.host),
                      "A peer that connects to a wildcard reaches itself. Stagelink refuses to "
                      "start so.",
                      "Bind one address of this machine (" + list_of(host_, false) +
                          "), or say with advertise (advertise_host) which one peers are told."});
      return;
    }
    out_.push_back(note("wildcard",
                        fmt::format("{}: listens on every address of this machine", place_.who),
                        "Whoever reaches one of them may connect: bind one address, or set a "
                        "secret_file."));
    check_advertised(options);
  }

  bool check_local() {
    const auto socket = engine::listen_tcp_socket({bound_.host, 0}, unused_);
    if (socket.ok()) return true;
    if (socket.status().code() != Code::kInvalidArgument) {
      out_.push_back({Level::kError, std::string(reason_name(socket.status().reason())),
                      fmt::format("{}: {}", place_.who, socket.status().message()),
                      "Nothing can listen there.", "See docs/operations.md."});
      return false;
    }
    out_.push_back(
        {Level::kError, "address_not_local",
         fmt::format("{}: {} is no address of this machine", place_.who, bound_.host),
         "A process can only listen on an address that its own machine has: it fails at start.",
         "This machine has: " + list_of(host_, true) +
             ". Bind one of these, or auto. If peers reach this machine by " + bound_.host +
             " through an address translation, that is what advertise (advertise_host) is for."});
    return false;
  }

  void check_kind() {
    const LocalAddress* const local = find_local(host_, bound_.host);
    const bool automatic = place_.host == "auto";
    if (is_loopback(host_, bound_.host)) {
      if (automatic) {
        out_.push_back(
            {Level::kWarning, "auto_is_loopback",
             fmt::format("{}: auto is {}, for want of another address", place_.who, bound_.host),
             "Peers on other hosts are told an address that leads them to themselves.",
             "Bring the network interface up, or name it with interface."});
      } else {
        out_.push_back(note("loopback",
                            fmt::format("{}: {} is reached by processes of this host alone",
                                        place_.who, bound_.host),
                            "For peers on other hosts, bind an address they reach: auto, or one "
                            "of: " +
                                list_of(host_, false) + "."));
      }
      return;
    }
    if (local != nullptr && local->link_local) {
      out_.push_back({Level::kWarning, "link_local",
                      fmt::format("{}: {} is a link-local address", place_.who, bound_.host),
                      "It means something only on its link, and each peer has to know its own "
                      "name of that link.",
                      "Give the interface a routable address, or bind another one: " +
                          list_of(host_, false) + "."});
      return;
    }
    const std::string interface = local == nullptr ? "" : " of " + local->interface;
    out_.push_back(fine(
        automatic ? fmt::format("{}: auto is {}{}", place_.who, bound_.host, interface)
                  : fmt::format("{}: {} is an address of this machine", place_.who, bound_.host)));
  }

  void check_advertised(EngineOptions& options) {
    if (place_.advertise.empty()) return;
    options.advertise = place_.advertise;
    const uint16_t port = place_.port == 0 ? kSomePort : place_.port;
    const auto told = engine::advertised_address(options, {bound_.host, port});
    if (!told.ok()) {
      out_.push_back({Level::kError, "advertise",
                      fmt::format("{}: {}", place_.who, told.status().message()),
                      "Peers connect to what they are told.", "Mend advertise (advertise_host)."});
      return;
    }
    judge_told(parse_endpoint(*told)->host);
  }

  void judge_told(const std::string& told) {
    const std::vector<std::string> addresses = addresses_of(told);
    if (addresses.empty()) {
      out_.push_back(
          {Level::kError, "advertise_unknown",
           fmt::format("{}: peers are told {}, a name without an address", place_.who, told),
           "No peer can connect.", "Correct the name, or the DNS or /etc/hosts."});
      return;
    }
    const std::string& first = addresses.front();
    if (is_loopback(host_, first) && !is_loopback(host_, bound_.host)) {
      out_.push_back({Level::kWarning, "advertise_loopback",
                      fmt::format("{}: peers are told {} ({}), which leads them to themselves",
                                  place_.who, told, first),
                      "Peers on other hosts cannot connect.",
                      "Advertise an address of this machine: " + list_of(host_, false) +
                          ". Debian maps a host's own name to 127.0.1.1 in /etc/hosts."});
      return;
    }
    if (find_local(host_, first) != nullptr || is_loopback(host_, first)) {
      out_.push_back(
          fine(fmt::format("{}: peers are told {}, an address of this machine", place_.who, told)));
      return;
    }
    report_translation(told);
  }

  void report_translation(const std::string& told) {
    const std::string what = fmt::format(
        "{}: peers are told {}, which is not of this machine "
        "({} is bound)",
        place_.who, told, bound_.host);
    if (place_.port == 0) {
      out_.push_back({Level::kWarning, "translated_any_port",
                      what + ", and the port is any free one",
                      "An address translation forwards the ports that it was told; this one is "
                      "another at every start.",
                      "Fix the port: bind: \"" + Endpoint{bound_.host, 5000}.to_string() +
                          "\", and forward it."});
      return;
    }
    out_.push_back(note(
        "translated", what + ": right behind an address translation",
        fmt::format("Something has to forward {} to {}.", Endpoint{told, place_.port}.to_string(),
                    Endpoint{bound_.host, place_.port}.to_string())));
  }

  const HostView& host_;
  const ListenPlace& place_;
  std::vector<Finding>& out_;
  Endpoint bound_;
  Endpoint unused_;
};

}  // namespace

std::vector<Finding> check_addresses(const HostView& host, const Subject& subject) {
  std::vector<Finding> out;
  out.push_back(describe_machine(host));
  // Ranks share an address: it is judged once.
  std::vector<std::pair<ListenPlace, size_t>> groups;
  for (const ListenPlace& place : subject.listens) {
    const auto same = [&place](const auto& group) {
      const ListenPlace& other = group.first;
      return std::tie(place.host, place.interface, place.advertise) ==
             std::tie(other.host, other.interface, other.advertise);
    };
    const auto known = std::ranges::find_if(groups, same);
    if (known == groups.end()) {
      groups.emplace_back(place, 0);
    } else {
      ++known->second;
    }
  }
  for (auto& [place, more] : groups) {
    if (more > 0) place.who += fmt::format(" and {} more", more);
    PlaceCheck(host, place, out).run();
  }
  return out;
}

}  // namespace stagelink::cli::doctor
