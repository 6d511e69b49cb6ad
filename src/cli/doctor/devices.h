#pragma once

#include <vector>

#include "cli/doctor/finding.h"
#include "cli/doctor/host_view.h"

namespace stagelink::cli::doctor {

// RDMA devices, whether this user may open them, and the UCX library.
std::vector<Finding> check_devices(const HostView& host);

}  // namespace stagelink::cli::doctor
