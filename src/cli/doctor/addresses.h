#pragma once

#include <vector>

#include "cli/doctor/finding.h"
#include "cli/doctor/host_view.h"
#include "cli/doctor/subject.h"

namespace stagelink::cli::doctor {

// Whether each place to listen is an address of this machine, what `auto` becomes, and whether what
// peers are told can lead them there.
std::vector<Finding> check_addresses(const HostView& host, const Subject& subject);

}  // namespace stagelink::cli::doctor
