#pragma once

#include <string>
#include <vector>

namespace stagelink::cli::replay {

// Two network namespaces that stand for two hosts, joined by one wire for each pair of addresses.
// Their loopbacks are up, and they have no other address. Removed at the end of its life.
class TwoHosts {
 public:
  struct Wire {
    std::string left;  // An address with its prefix, such as "10.77.0.1/24".
    std::string right;
  };
  // Empty if this process may not make namespaces; see why_not().
  explicit TwoHosts(const std::vector<Wire>& wires);
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;
  ~TwoHosts();

  bool exist() const noexcept { return why_not_.empty(); }
  const std::string& why_not() const noexcept { return why_not_; }
  const std::string& left() const noexcept { return left_; }
  const std::string& right() const noexcept { return right_; }

 private:
  bool run(const std::string& command);

  const std::string left_;
  const std::string right_;
  std::string why_not_;
};

// Both addresses of every TCP connection that the process's namespace has, without those that
// listen; IPv4 only.
std::vector<std::string> connected_addresses(int pid);

}  // namespace stagelink::cli::replay
