#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "cli/doctor/finding.h"
#include "cli/doctor/host_view.h"

namespace stagelink::cli::doctor {

// The version of a Python package by the names of its files, without running Python; empty: not
// found.
std::string python_package(const std::vector<std::string>& folders, std::string_view name);

// Optional libraries, Python packages and programs, and whether they are the tested versions.
std::vector<Finding> check_packages(const HostView& host, const Deadline& deadline);

}  // namespace stagelink::cli::doctor
