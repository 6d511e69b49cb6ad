#include "unit/cli/replay/halves/namespaces.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include <arpa/inet.h>
#include <unistd.h>

namespace stagelink::cli::replay {
namespace {

constexpr int kListening = 0x0a;

std::string text_of(uint32_t address) {
  std::array<char, INET_ADDRSTRLEN> text{};
  const in_addr raw{address};
  return ::inet_ntop(AF_INET, &raw, text.data(), text.size());
}

}  // namespace

TwoHosts::TwoHosts(const std::vector<Wire>& wires)
    : left_("sl-left-" + std::to_string(::getpid())),
      right_("sl-right-" + std::to_string(::getpid())) {
  for (const std::string& name : {left_, right_}) {
    if (!run("ip netns add " + name) || !run("ip -n " + name + " link set lo up")) return;
  }
  for (size_t i = 0; i < wires.size(); ++i) {
    const std::string left = "l" + std::to_string(i);
    const std::string right = "r" + std::to_string(i);
    const bool joined = run("ip link add " + left + " netns " + left_ + " type veth peer name " +
                            right + " netns " + right_);
    if (!joined) return;
    for (const auto& [host, end, address] :
         {std::array{left_, left, wires[i].left}, std::array{right_, right, wires[i].right}}) {
      const bool six = address.find(':') != std::string::npos;
      const std::string add = "ip -n " + host + " addr add " + address + " dev " + end;
      if (!run(add + (six ? " nodad" : "")) || !run("ip -n " + host + " link set " + end + " up")) {
        return;
      }
    }
  }
}

TwoHosts::~TwoHosts() {
  for (const std::string& name : {left_, right_}) {
    const std::string command = "ip netns del " + name + " 2>/dev/null";
    if (std::system(command.c_str()) != 0 && exist()) std::perror(command.c_str());
  }
}

bool TwoHosts::run(const std::string& command) {
  const bool done = std::system((command + " 2>/dev/null").c_str()) == 0;
  if (!done) why_not_ = "not permitted here, or not installed: " + command;
  return done;
}

std::vector<std::string> connected_addresses(int pid) {
  std::vector<std::string> found;
  std::ifstream file("/proc/" + std::to_string(pid) + "/net/tcp");
  std::string line;
  std::getline(file, line);  // The heading.
  while (std::getline(file, line)) {
    unsigned int local = 0;
    unsigned int remote = 0;
    unsigned int state = 0;
    if (std::sscanf(line.c_str(), " %*d: %8x:%*4x %8x:%*4x %2x", &local, &remote, &state) != 3) {
      continue;
    }
    if (static_cast<int>(state) == kListening) continue;
    found.push_back(text_of(local));
    found.push_back(text_of(remote));
  }
  return found;
}

}  // namespace stagelink::cli::replay
