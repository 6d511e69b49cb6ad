#pragma once

#include <string>
#include <vector>

#include "base/deadline.h"
#include "cli/doctor/finding.h"
#include "cli/doctor/host_view.h"
#include "cli/doctor/subject.h"

namespace stagelink::cli::doctor {

struct NpuRequest {
  std::vector<int> ids;  // Empty: those in /dev, else 0 to 7 if there is a hccn_tool.
  std::vector<std::string>
      targets;  // Device addresses to ping; empty: those of the other NPUs here.
  Duration step_timeout = std::chrono::seconds(10);  // For each run of hccn_tool.
  Duration total_timeout = std::chrono::minutes(2);  // For all of them.
};

// "0-3,6". Errors: invalid_argument.
Result<std::vector<int>> parse_npu_ids(std::string_view text);

// The device network of Ascend NPUs: an IPv4 address, link and health of each, pings between them,
// by what hccn_tool says.
std::vector<Finding> check_npu(const HostView& host, const Subject& subject,
                               const NpuRequest& request);

}  // namespace stagelink::cli::doctor
