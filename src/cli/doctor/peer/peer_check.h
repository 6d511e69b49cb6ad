#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/doctor/finding.h"
#include "cli/doctor/host_view.h"
#include "cli/doctor/peer/probe.h"
#include "cli/doctor/subject.h"

namespace stagelink::cli::doctor {

struct PeerLimits {
  Duration timeout = std::chrono::seconds(5);       // For each step.
  Duration measure_time = std::chrono::seconds(1);  // Of throughput.
  uint64_t measure_bytes = uint64_t{256} << 20;
};

// What a probe found, in words.
std::vector<Finding> judge_peer(const HostView& host, const PeerPlace& place,
                                const PeerFacts& facts);

// Every peer of the subject: connects, greets, measures. `progress` is told what is under way.
std::vector<Finding> check_peers(const HostView& host, const Subject& subject,
                                 const PeerLimits& limits,
                                 const std::function<void(const std::string&)>& progress);

}  // namespace stagelink::cli::doctor
