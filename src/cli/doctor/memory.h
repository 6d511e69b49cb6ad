#pragma once

#include <vector>

#include "cli/doctor/finding.h"
#include "cli/doctor/host_view.h"
#include "cli/doctor/subject.h"

namespace stagelink::cli::doctor {

// Shared memory, free memory, the runtime directory, and the limits of this user's processes.
std::vector<Finding> check_memory(const HostView& host, const Subject& subject);

}  // namespace stagelink::cli::doctor
