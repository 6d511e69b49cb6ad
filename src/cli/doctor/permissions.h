#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/doctor/finding.h"
#include "cli/doctor/host_view.h"
#include "cli/doctor/subject.h"

namespace stagelink::cli::doctor {

// What was seen of the kernel's copy between two processes of this user.
struct CopyProbe {
  int error = 0;          // Of process_vm_readv by a child of this process's memory; 0: it worked.
  bool by_itself = true;  // Whether the call works on the caller's own memory.
};
CopyProbe probe_copy(bool allow_ptrace);

// Judges the probe by what the kernel and the container say of themselves.
std::vector<Finding> judge_copy(const HostView& host, const Subject& subject,
                                const CopyProbe& probe);

// Both of them.
std::vector<Finding> check_permissions(const HostView& host, const Subject& subject);

}  // namespace stagelink::cli::doctor
