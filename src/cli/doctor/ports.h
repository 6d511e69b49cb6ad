#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "cli/doctor/finding.h"
#include "cli/doctor/host_view.h"
#include "cli/doctor/subject.h"

namespace stagelink::cli::doctor {

// Who has a TCP port of this machine (of this network namespace).
struct PortHolder {
  bool listens = false;  // Else a connection from that port.
  uint32_t uid = 0;
  pid_t pid = 0;  // 0: a process that this user may not look into.
  std::string command;
};

// From net/tcp, net/tcp6 and the fd folders of `proc`. A listener comes before a connection.
std::optional<PortHolder> holder_of(const std::string& proc, uint16_t port);

// Whether the ports of the configuration can be bound, and who has those that cannot.
std::vector<Finding> check_ports(const HostView& host, const Subject& subject);

}  // namespace stagelink::cli::doctor
