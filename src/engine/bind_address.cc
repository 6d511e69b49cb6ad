#include "engine/bind_address.h"

#include <cerrno>
#include <cstring>
#include <memory>
#include <set>
#include <string>

#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

namespace stagelink::engine {
namespace {

using Interfaces = std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)>;

// Lower is better; 0: not usable.
int rank_of(const ifaddrs& entry, const std::string& wanted) {
  if (entry.ifa_addr == nullptr || (entry.ifa_flags & IFF_UP) == 0) return 0;
  if (!wanted.empty() && wanted != entry.ifa_name) return 0;
  int rank = 0;
  if (entry.ifa_addr->sa_family == AF_INET) {
    rank = 1;
  } else if (entry.ifa_addr->sa_family == AF_INET6) {
    const auto& address = reinterpret_cast<const sockaddr_in6&>(*entry.ifa_addr).sin6_addr;
    rank = IN6_IS_ADDR_LINKLOCAL(&address) ? 3 : 2;
  } else {
    return 0;
  }
  // Another host is never reached by loopback, so that comes behind everything else.
  return (entry.ifa_flags & IFF_LOOPBACK) != 0 ? rank + 3 : rank;
}

// With the scope of link-local addresses.
std::string numeric_host(const sockaddr& address) {
  char host[NI_MAXHOST];
  const socklen_t size = address.sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  const int rc = ::getnameinfo(&address, size, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return rc == 0 ? host : "";
}

// The first interface that has a usable address decides; among its addresses, the best.
const ifaddrs* choose(const ifaddrs* first, const std::string& wanted) {
  const ifaddrs* best = nullptr;
  int best_rank = 0;
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    const int rank = rank_of(*at, wanted);
    if (rank == 0) continue;
    const bool better = best == nullptr || (best_rank > 3 && rank <= 3) ||
                        (rank < best_rank && std::strcmp(at->ifa_name, best->ifa_name) == 0);
    if (!better) continue;
    best = at;
    best_rank = rank;
  }
  return best;
}

std::string names_of(const ifaddrs* first) {
  std::set<std::string> names;
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    if (rank_of(*at, "") != 0) names.insert(at->ifa_name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

Result<Endpoint> bind_address(const EngineOptions& options) {
  Endpoint bind;
  if (options.bind == "auto") {
    bind.host = "auto";
  } else {
    SL_ASSIGN(bind, parse_endpoint(options.bind));
  }
  if (bind.host != "auto") {
    if (options.interface.empty()) return bind;
    return Status(
        Reason::kInvalidArgument,
        fmt::format("option interface = \"{}\" goes with bind = \"auto\", not with \"{}\"",
                    options.interface, options.bind));
  }
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) {
    return Status(Reason::kSystem, fmt::format("getifaddrs: {}", std::strerror(errno)));
  }
  const Interfaces interfaces(found, &::freeifaddrs);
  const ifaddrs* const chosen = choose(interfaces.get(), options.interface);
  if (chosen == nullptr) {
    return Status(
        Reason::kInvalidArgument,
        fmt::format("option interface = \"{}\": no such interface with an address that is "
                    "up; there are: {}",
                    options.interface, names_of(interfaces.get())));
  }
  bind.host = numeric_host(*chosen->ifa_addr);
  return bind;
}

}  // namespace stagelink::engine
