#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "cli/doctor/finding.h"
#include "cli/doctor/host_view.h"
#include "cli/doctor/subject.h"

namespace stagelink::cli::doctor {

// What an interpreter knows of a package; all empty: nothing.
struct PythonPackage {
  std::string version;
  std::string where;
  std::string error;  // Why it cannot be imported.
};
using PythonPackages = std::map<std::string, PythonPackage, std::less<>>;
// Lines of four words between tabs: name, version, where, error. Others are left out.
PythonPackages parse_packages(std::string_view text);

// Optional libraries, programs and Python packages, and whether they are the tested versions. The
// packages are those that the interpreter of `host` finds, in its environment and with PYTHONPATH.
// One that the subject cannot do without is an error where it is missing.
std::vector<Finding> check_packages(const HostView& host, const Subject& subject,
                                    const Deadline& deadline);

}  // namespace stagelink::cli::doctor
