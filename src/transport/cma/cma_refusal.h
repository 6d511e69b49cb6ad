#pragma once

#include <sys/types.h>

#include "stagelink/status.h"

namespace stagelink::transport {

// Why process_vm_readv of process `pid` of user `uid` failed with `error`: one sentence that says
// what to do. Looks at /proc and tries the call on this process. Never ok.
Status why_refused(int error, pid_t pid, uid_t uid);

}  // namespace stagelink::transport
